"""Figures that are drawn from published results beside printed values, and a made-up evolution."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from attention_core import plots
from attention_core.plots.panels import make_panels
from attention_core.spectral import hfc_lfc
from attention_core.theory import apply_update
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiment_kit.errors import UserError
from experiment_kit.papers.figures.entries import FigureEntry
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import PaperTable, load_table

DEPTHS = (0, 1, 2, 4, 8, 16)  # layers at which the evolution is drawn
TOKENS = 32
Means = Mapping[tuple[str, str], float]  # by row and column


def draw_gains(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw the relative gain of each domain: the text's, that of the table, and ours."""
    figure, axes = make_panels(1, width=width, height=4.2)
    axis = next(axes)
    pairs: Sequence[Mapping[str, Any]] = entry.options["pairs"]
    series: dict[str, list[float | None]] = {"text of the paper": [], "its table": [],
                                             "measured here": []}  # fmt: skip
    names = []
    for pair in pairs:
        paper = load_table(pair["table"])
        better = bool(paper.columns[pair["column"]].higher_is_better)
        printed = [paper.find_row(row).values[pair["column"]] for row in pair["rows"][0]]
        measured, row = _measure_gain(results, paper, pair, better)
        series["text of the paper"].append(pair["text"])
        series["its table"].append(compute_gain(printed[0], printed[1], better))
        series["measured here"].append(measured)
        names.append(f"{pair['domain']}\n{row}" if row else pair["domain"])
    _draw_bars(axis, names[::-1], {m: values[::-1] for m, values in series.items()}, flat=True)
    axis.set(xlabel="relative gain by GFSA, %", ylabel="domain, and what was measured here")
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    axis.axvline(0, color="0.5", linewidth=0.8)
    plots.add_legend(figure)
    return figure


def compute_gain(before: float, after: float, higher_is_better: bool) -> float:
    """Return the relative improvement in percent.

    >>> round(compute_gain(60.34, 64.11, True), 2), round(compute_gain(2.42, 2.31, False), 2)
    (6.25, 4.55)
    """
    change = (after - before) / abs(before)
    return 100 * (change if higher_is_better else -change)


def draw_errors(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw training and test error by depth, with the deviation over seeds."""
    means, paper = _read_means(entry, results)
    panels: dict[str, dict[str, Any]] = {"training error": {}, "test error": {}}
    for title, curves in panels.items():
        kind = "train" if title.startswith("train") else "test"
        for row in paper.rows:
            found = [
                (depth, mean)
                for depth in (12, 24, 48)
                if (mean := means.get((row.key, f"{kind}_error_{depth}"))) is not None
            ]
            if found:
                curves[_write_signs(row.label)] = tuple(map(list, zip(*found, strict=True)))
    figure = plots.plot_curves(panels, "layers", "error, %", width=width)
    for axis in figure.axes:
        axis.set_xticks((12, 24, 48))
    return figure


def draw_scores(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw the score of each task as bars, a panel for each depth."""
    means, paper = _read_means(entry, results)
    depths = list(dict.fromkeys(column.rpartition("_")[2] for column in paper.columns))
    figure, axes = make_panels(len(depths), 1, 2.4, width)
    for depth, axis in zip(depths, axes, strict=True):
        columns = [column for column in paper.columns if column.endswith(f"_{depth}")]
        series = {
            _write_signs(row.label): [means.get((row.key, column)) for column in columns]
            for row in paper.rows
        }
        _draw_bars(axis, [paper.columns[c].name.partition(",")[0] for c in columns], series)
        axis.set(title=f"{depth} layers", ylabel="score, %", xlabel="task of SuperGLUE")
    plots.add_legend(figure)
    return figure


def draw_evolution(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw tokens under the update X + A X W by depth, each image by its own scale.

    A averages neighbors on a ring, so that its eigenvalues are real, and W = c I: 1 + c dominates
    for c > 0, and 1 + c lambda of the smallest eigenvalue lambda for -1 < c < 0.
    """
    place = torch.arange(TOKENS, dtype=torch.float64)
    distance = (place - place.unsqueeze(1)).abs()
    A = (-torch.minimum(distance, TOKENS - distance) / 2).softmax(-1)
    place = torch.linspace(-1, 1, TOKENS, dtype=torch.float64)
    disk = (place.unsqueeze(1) ** 2 + place**2 < 0.4).to(place)
    X = 0.4 + disk + 0.3 * place  # an image of a low and a high frequency
    rows: dict[str, dict[str, Any]] = {}
    for name, c in {"smoothing": 1.0, "sharpening": -0.7}.items():
        images, x = {}, X
        for depth in range(max(DEPTHS) + 1):
            if depth in DEPTHS:
                ratio = f"{hfc_lfc(x).item():.2g}".replace("e+0", "e")
                title = f"depth {depth}\nHFC/LFC {ratio}"
                images[title] = (x / x.abs().max()).tolist()
            x = apply_update(x, A, c * torch.eye(TOKENS, dtype=x.dtype))
        rows[name] = images
    return plots.plot_attention_maps(rows, width=width, labels=("channel", "token"))


def _measure_gain(
    results: Path, paper: PaperTable, pair: Mapping[str, Any], better: bool
) -> tuple[float | None, str]:
    """Return our gain for the first pair of rows that is measured, and the name of its row."""
    found = open_results(results, find_spec(paper.id))
    means = {setting: found.list_means(*setting) for setting in found.settings}
    labels = found.spec.labels
    for (base, row), setting in product(pair["rows"], means):
        for column in dict.fromkeys([pair["column"], *sorted(paper.columns)]):
            before, after = (means[setting].get((name, column)) for name in (base, row))
            if before and after is not None:
                label = f"{labels[row]}\n{paper.columns[column].name}, profile {setting[0]}"
                return compute_gain(before, after, better), label
    return None, ""


def _read_means(entry: FigureEntry, results: Path) -> tuple[Means, PaperTable]:
    """Return the means of the setting that has the most of them; UserError if there is none."""
    found = open_results(results, find_spec(entry.table))
    if not found.settings:
        path = results / f"{entry.table}.csv"
        raise UserError(f"{entry.id} cannot be drawn: {path} has no results; "
                        f"make table TABLE={entry.table} makes them")  # fmt: skip
    return max((found.list_means(*setting) for setting in found.settings), key=len), found.paper


def _write_signs(label: str) -> str:
    """Return a label of a table with its signs raised, as `ViT-Ti^-`."""
    return label.replace("^-", "⁻").replace("^+", "⁺").replace("^~", "~")


def _draw_bars(
    axis: Axes,
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    flat: bool = False,
) -> None:
    """Draw a group of bars for each name; `flat` ones lie, the first of a group on top."""
    size = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        drawn = [(x, y) for x, y in enumerate(values) if y is not None]
        offset = (i - (len(series) - 1) / 2) * (-size if flat else size)
        places = [x + offset for x, _ in drawn]
        draw = axis.barh if flat else axis.bar
        draw(places, [y for _, y in drawn], size, color=f"C{i}", label=label)
    set_ticks = axis.set_yticks if flat else axis.set_xticks
    set_ticks(range(len(names)), names)


RESULT_FIGURES: dict[str, Callable[[FigureEntry, Path, float], Figure]] = {
    "gains": draw_gains,
    "errors": draw_errors,
    "scores": draw_scores,
    "evolution": draw_evolution,
}
