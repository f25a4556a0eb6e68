"""Figures of printed and published values, of what runs wrote, and of a made-up evolution."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from attention_core import plots
from attention_core.plots.panels import make_panels, use_log_scale
from attention_core.spectral import hfc_lfc
from attention_core.theory import apply_update
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiment_kit.errors import UserError
from experiment_kit.pages.records import read_scalars, summarize_seeds
from experiment_kit.pages.run_figures import plot_training_curves
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.figures.entries import FigureEntry, PanelRuns
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import PaperTable, load_table

DEPTHS = (0, 1, 2, 4, 8, 16)  # layers at which the evolution is drawn
TOKENS = 32
Means = Mapping[tuple[str, str], float]  # by row and column
RATIO = r"\w+/hfc_lfc/layer_(\d+)"
CONDITION, SPECTRUM = r"\w+/condition_number/layer_(\d+)", r"\w+/psi/layer_(\d+)(/mean)?"
LOSSES = ("train/loss", "val/loss")
Curves = dict[str, pd.DataFrame]  # by the title of their panel


def draw_gains(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw the relative gain of each domain: the text's, that of the table, and ours."""
    figure, axes = make_panels(1, width=width, height=4.2)
    axis = next(axes)
    bars: dict[str, list[float | None]] = {"text of the paper": [], "its table": [],
                                           "measured here": []}  # fmt: skip
    intervals, names, noise = [], [], []
    for pair in reversed(entry.options["pairs"]):
        paper = load_table(pair["table"])
        better = bool(paper.columns[pair["column"]].higher_is_better)
        printed = [paper.find_row(row).values[pair["column"]] for row in pair["rows"][0]]
        name, gain = _measure_gain(results, paper, pair, better)
        if gain and abs(gain.mean) <= gain.half_width:
            noise.append(pair["domain"])
            name, gain = "", None
        row = (pair["text"], compute_gain(printed[0], printed[1], better), gain and gain.mean)
        for values, value in zip(bars.values(), row, strict=True):
            values.append(value)
        intervals.append(gain.half_width if gain else 0.0)
        names.append(f"{pair['domain']}\n{name}" if name else pair["domain"])
    _draw_bars(axis, names, bars, flat=True, intervals=intervals)
    left_out = f"\nmeasured, and left out as the interval holds 0: {', '.join(noise)}"
    axis.set(xlabel=f"relative gain by GFSA, %{left_out if noise else ''}", ylabel="domain")
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    axis.axvline(0, color="0.5", linewidth=0.8)
    plots.add_legend(figure)
    return figure


def compute_gain(before: float, after: float, higher_is_better: bool) -> float:
    """Return the relative improvement in percent."""
    change = (after - before) / abs(before)
    return 100 * (change if higher_is_better else -change)


def draw_errors(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw training and test error by depth."""
    means, paper = _read_means(entry, results)
    panels: dict[str, dict[str, Any]] = {"training error": {}, "test error": {}}
    for title, curves in panels.items():
        columns = {depth: f"{title.split()[0]}_error_{depth}" for depth in (12, 24, 48)}
        columns = {depth: name.replace("training", "train") for depth, name in columns.items()}
        for row in paper.rows:
            found = [(d, means[row.key, c]) for d, c in columns.items() if (row.key, c) in means]
            if found:
                curves[_write_signs(row.label)] = tuple(map(list, zip(*found, strict=True)))
    figure = plots.plot_curves(panels, "layers", "error, %", width=width)
    for axis in figure.axes:
        axis.set_xticks((12, 24, 48))
    return figure


def draw_sweep(entry: FigureEntry, results: Path, width: float) -> Figure:
    """Draw the score of each task by K, from the rows K2, K3, ... of a table."""
    means, paper = _read_means(entry, results)
    panels: dict[str, dict[str, Any]] = {}
    for key, column in paper.columns.items():
        found = {int(row[1:]): mean for (row, c), mean in means.items()
                 if c == key and re.fullmatch(r"K\d+", row)}  # fmt: skip
        if len(found) > 1:
            panels[column.name] = {entry.options["label"]: ([*found], [*found.values()])}
    if not panels:
        raise UserError(f"{entry.id} cannot be drawn: {entry.table} has no two orders K of a task; "
                        f"{entry.options['command']} makes them")  # fmt: skip
    return plots.plot_curves(panels, "K", "validation score", width=width)


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
) -> tuple[str, MeanDeviation | None]:
    """Return our gain, paired by seed, of the first measured pair of rows, and its name."""
    found = open_results(results, find_spec(paper.id))
    columns = dict.fromkeys([pair["column"], *sorted(paper.columns)])
    for (base, row), setting, column in product(pair["rows"], found.settings, columns):
        runs = found.select_runs(*setting)
        seeds = runs[runs["column"] == column].pivot(index="seed", columns="row", values="value")
        if {base, row} <= {*seeds} and len(pairs := seeds[[base, row]].dropna()):
            gains = [compute_gain(x, y, better) for x, y in pairs.to_numpy().tolist()]
            name = f"{found.spec.labels[row]}\n{paper.columns[column].name}, {setting[0]}"
            return name, MeanDeviation.from_values(gains)
    return "", None


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
    intervals: Sequence[float] = (),
) -> None:
    """Draw a group of bars for each name; `flat` ones lie, and intervals are of the last series."""
    size = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        offset = (i - (len(series) - 1) / 2) * (-size if flat else size)
        drawn = {x: value for x, value in enumerate(values) if value is not None}
        style: dict[str, Any] = {"color": f"C{i}", "label": label}
        if intervals and drawn and i == len(series) - 1:
            style |= {"xerr": [intervals[x] for x in drawn], "ecolor": "0.4"}
        draw = axis.barh if flat else axis.bar
        draw([x + offset for x in drawn], [*drawn.values()], size, **style)
    (axis.set_yticks if flat else axis.set_xticks)(range(len(names)), names)


RESULT_FIGURES: dict[str, Callable[[FigureEntry, Path, float], Figure]] = {
    "gains": draw_gains,
    "sweep": draw_sweep,
    "errors": draw_errors,
    "scores": draw_scores,
    "evolution": draw_evolution,
}


def draw_training(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw the losses by step: the mean over seeds, with a band."""

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Curves:
        series = {tag: [run[tag] for run in seeds if tag in run] for tag in LOSSES}
        return {tag: summarize_seeds(found) for tag, found in series.items() if found}

    what = "losses in their folders"
    return plot_training_curves(
        _read_curves(entry, panels, "|".join(LOSSES), summarize, what), width=width
    )


def draw_ratio_history(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw HFC/LFC of the last layer by step."""

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Curves:
        last = [run[max(run, key=lambda tag: int(tag.rpartition("_")[2]))] for run in seeds if run]
        return {"HFC/LFC of the last layer's tokens": summarize_seeds(last)} if last else {}

    what = "measures of the monitor: train them with spectral"
    methods = _read_curves(entry, panels, RATIO, summarize, what)
    return plot_training_curves(methods, width=min(width, 4.5))


def draw_condition_history(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw the condition number of H and its eigenvalues psi by step: mean and range of layers."""
    names = {"condition number of H": CONDITION, "eigenvalues psi of H": SPECTRUM}

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Curves:
        layers = {
            title: [series for tag, series in seeds[0].items() if re.fullmatch(pattern, tag)]
            for title, pattern in names.items()
        }
        return {title: summarize_seeds(found) for title, found in layers.items() if found}

    what = "condition numbers: the monitor of an older version did not log them"
    methods = _read_curves(entry, panels, f"{CONDITION}|{SPECTRUM}", summarize, what)
    figure = plot_training_curves(methods, width=width)
    figure.supylabel("mean and range over layers", fontsize=8)
    use_log_scale(figure.axes[0])
    return figure


def _read_curves(
    entry: FigureEntry, panels: PanelRuns, tags: str,
    summarize: Callable[[Sequence[Mapping[str, pd.Series]]], Curves], what: str,
) -> dict[str, Curves]:  # fmt: skip
    """Summarize the scalars whose tags match by label; UserError where none has any."""
    runs = {label: seeds for panel in panels.values() for label, seeds in panel.items()}
    read = {label: [read_scalars(run, tags) for run in seeds] for label, seeds in runs.items()}
    found = {label: summarize(seeds) for label, seeds in read.items()}
    if not any(found.values()):
        raise UserError(f"{entry.id} cannot be drawn: its runs have no {what}")
    return {label: curves for label, curves in found.items() if curves}


RUN_FIGURES: dict[str, Callable[[FigureEntry, PanelRuns, float], Figure]] = {
    "training": draw_training,
    "ratio_history": draw_ratio_history,
    "condition_history": draw_condition_history,
}
