"""The drawings of printed figures, by the name that `figures.yaml` calls them."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from attention_core import plots, spectral
from attention_core.plots.panels import make_panels
from attention_core.theory import bound_power_error
from matplotlib.figure import Figure

from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.figures import DrawnModel
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import PaperTable, load_table

ORDERS = range(2, 11)  # K
MAX_COLUMNS = 6  # attention maps side by side

Models = Mapping[str, DrawnModel]  # by their labels


def draw_smoothing(models: Models, width: float) -> Figure:
    """Draw response, signed cosine, singular values, and the gain at those of the map."""
    measured = {}
    for label, model in models.items():
        last = model.diagnosis.layers[-1].output
        sigma, gains = spectral.singular_response(model.maps[-1].A, model.maps[-1].H)
        measured[label] = {
            "response": torch.tensor(model.diagnosis.layers[-1].responses).mean(0).tolist(),
            "signed_token_cosine": model.diagnosis.curve("signed_token_cosine"),
            "singular_values": last.singular_values if last else [],
            "singular_response": (sigma.mean(0).tolist(), gains.mean(0).tolist()),
        }
    return plots.plot_smoothing(measured, width=width)


def draw_power_error(models: Models, width: float) -> Figure:
    """Draw E_K of the last layer's maps, the printed bound 2K, and the tighter one of `theory`."""
    found: dict[str, Any] = {}
    for label, model in models.items():
        bounds = [bound_power_error(model.maps[-1].A.double(), K) for K in ORDERS]
        found[label] = {
            "bound of the paper, 2K": (ORDERS, [2 * K for K in ORDERS]),
            "tighter bound": (ORDERS, [bound.upper.mean().item() for bound in bounds]),
            "measured": (ORDERS, [bound.measured.mean().item() for bound in bounds]),
        }
    return plots.plot_curves(found, "K", "E_K", width=width)


def draw_spectra(models: Models, width: float) -> Figure:
    """Draw the response of every head of the first model for one sample."""
    maps = [layer.H for layer in next(iter(models.values())).maps]
    half = maps[0].shape[-1] // 2 + 1
    grid = [spectral.dft_response(H)[..., :half].tolist() for H in maps]
    return plots.plot_spectra_grid(grid, width)


def draw_cosines(models: Models, width: float) -> Figure:
    """Draw the cosines of maps and of tokens by depth."""
    curves: dict[str, Any] = {"|cosine| of columns of the maps": {},
                              "|cosine| of pairs of tokens": {}}  # fmt: skip
    of_maps, of_tokens = curves.values()
    for label, model in models.items():
        cosines = [spectral.map_cosine(layer.H).item() for layer in model.maps]
        of_maps[label] = (range(1, len(cosines) + 1), cosines)
        of_tokens[label] = model.average_curve("token_cosine")
    return plots.plot_curves(curves, "layer (0: embedding)", width=width)


def draw_attention_maps(models: Models, width: float) -> Figure:
    """Draw the maps of the first head in some layers for one sample, pooled by their maximum."""
    first = next(iter(models.values())).maps
    count = min(len(first), MAX_COLUMNS)
    layers = [round((i + 1) * len(first) / count) for i in range(count)]  # up to the last one
    maps = {
        label: {f"layer {i}": model.maps[i - 1].H[0].tolist() for i in layers}
        for label, model in models.items()
    }
    return plots.plot_attention_maps(maps, max(1, min(4, first[0].A.shape[-1] // 16)), width)


def draw_depth(models: Models, width: float, measure: str) -> Figure:
    """Draw a measure of the tokens by depth."""
    curves = {label: model.average_curve(measure) for label, model in models.items()}
    name = {"hfc_share": "|HC X| / |X|", "hfc_lfc": "HFC/LFC of the tokens"}[measure]
    return plots.plot_curves({"": curves}, "block (0: embedding)", name, width=min(width, 4.5))


def draw_gains(results: Path, width: float, pairs: list[dict[str, Any]]) -> Figure:
    """Draw the relative gain of each domain: the text's, that of the table, and ours."""
    names, noise, rows = [], [], []
    for pair in reversed(pairs):
        paper = load_table(pair["table"])
        better = bool(paper.columns[pair["column"]].higher_is_better)
        printed = [paper.find_row(row).values[pair["column"]] for row in pair["rows"][0]]
        name, gain = _measure_gain(results, paper, pair, better)
        if gain and abs(gain.mean) <= gain.half_width:
            noise.append(pair["domain"])
            name, gain = "", None
        names.append(f"{pair['domain']}\n{name}" if name else pair["domain"])
        ours = (gain.mean, gain.half_width) if gain else (torch.nan, torch.nan)
        rows.append((pair["text"], compute_gain(printed[0], printed[1], better), *ours))
    text, table, measured, errors = zip(*rows, strict=True)
    figure, axes = make_panels(1, width=width, height=4.2)
    axis = next(axes)
    bars = {"text of the paper": text, "its table": table, "measured here": measured}
    for i, (label, gains) in enumerate(bars.items()):
        places = [place + (1 - i) * 0.27 for place in range(len(names))]
        xerr = errors if gains is measured else None
        axis.barh(places, gains, 0.27, label=label, xerr=xerr, ecolor="0.4")
    left_out = f"\nmeasured, and left out as the interval holds 0: {', '.join(noise)}"
    axis.set(xlabel=f"relative gain by GFSA, %{left_out if noise else ''}", ylabel="domain")
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    axis.axvline(0, color="0.5", linewidth=0.8)
    plots.add_legend(figure)
    return figure


def compute_gain(before: float, after: float, higher_is_better: bool) -> float:
    """Return the relative improvement in percent."""
    change = (after - before) / abs(before)
    return 100 * (change if higher_is_better else -change)


def _measure_gain(
    results: Path, paper: PaperTable, pair: Mapping[str, Any], better: bool
) -> tuple[str, MeanDeviation | None]:
    """Return our gain, paired by seed, of the first measured pair of rows, and its name."""
    found = open_results(results, find_spec(paper.id))
    columns = dict.fromkeys([pair["column"], *sorted(paper.columns)])
    for (base, row), setting, column in product(pair["rows"], found.settings, columns):
        runs = found.select_runs(*setting)
        seeds = runs[runs["column"] == column].pivot(index="seed", columns="row", values="value")
        if {base, row} <= {*seeds} and len(values := seeds[[base, row]].dropna()):
            gains = [compute_gain(x, y, better) for x, y in values.to_numpy().tolist()]
            name = f"{found.spec.labels[row]}\n{paper.columns[column].name}, {setting[0]}"
            return name, MeanDeviation.from_values(gains)
    return "", None


# each takes models, or else the folder of results; then the width, and the options of the entry
DRAWINGS: dict[str, Callable[..., Figure]] = {
    "smoothing": draw_smoothing,
    "power_error": draw_power_error,
    "spectra": draw_spectra,
    "cosines": draw_cosines,
    "attention_maps": draw_attention_maps,
    "depth": draw_depth,
    "gains": draw_gains,
}
