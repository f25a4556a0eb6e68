"""Figures of the page and of the README, for light and for dark pages."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from attention_core.plots import MEASURES, add_legend, make_panels, render_figure
from attention_core.plots.panels import show_integers
from experiment_kit.run_files import write_atomically
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.evidence.methods import STACKED
from benchmarks.evidence.runner import Row
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.stacks import STACKS
from benchmarks.evidence.tables import select_values

WIDTH = 9.7  # inches: the width of a page on GitHub
THEMES = ("light", "dark")
# a color, a dash and a short name for what is told apart; the others are thin and share one color
LINES: dict[str, dict[str, Any]] = {
    "plain": {"color": "C1", "label": "plain"},
    "gfsa_positive": {"color": "C0", "linestyle": "dotted", "label": "GFSA, $w_K=+0.5$"},
    "gfsa_negative": {"color": "C0", "linestyle": "dashdot", "label": "GFSA, $w_K=-0.5$"},
    "centered": {"color": "C3", "linestyle": (0, (5, 1)), "label": "centered"},
    "polynomial": {"color": "C2", "label": "polynomial"},
}
OTHER = {"color": "C7", "linestyle": "dotted", "linewidth": 1.0, "label": "other mechanisms"}
GAP = 0.075  # between the labels of two lines, as a share of a panel's height

Results = Mapping[str, list[Row]]


def write_figures(results: Results, settings: Settings, folder: Path) -> list[Path]:
    """Write each figure for light and for dark pages; the same results give the same files."""
    drawings: dict[str, Callable[[], Figure]] = {
        "evidence": partial(draw_summary, results, settings),
        "evidence-stacks": partial(draw_stacks, results),
    }
    paths = []
    for name, draw in drawings.items():
        for theme in THEMES:
            paths.append(folder / f"{name}-{theme}.svg")
            write_atomically(paths[-1], render_figure(draw, theme=theme))
    return paths


def draw_summary(results: Results, settings: Settings) -> Figure:
    """Draw the README's figure: attention alone, a trained model, and what changes its tokens."""
    figure, panels = make_panels(3, height=3.0, width=WIDTH)
    axis = next(panels)
    draw_collapse(axis, results["stacks"], "attention", "token_cosine")
    axis.set_title(f"attention alone, {max(settings.stacks.depths)} layers")
    axis.set(ylabel="|cosine| between tokens", ylim=(0, 1.03))
    label_lines(axis)
    draw_model(next(panels), results["minilm"])
    draw_changes(next(panels), results["minilm"])
    return figure


def draw_model(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the cosine of tokens by layer of MiniLM, trained and with random weights."""
    ends = [row for row in rows if row["step"] in ("input", "mlp")]
    for weights, style in (
        ("pretrained", {"color": "C0", "label": "trained"}),
        ("random", {"color": "C7", "linestyle": "dashed", "label": "random weights"}),
    ):
        mine = [row for row in ends if row["weights"] == weights]
        draw_by_depth(axis, mine, "token_cosine", style)
    axis.set_title("MiniLM on sentences")
    axis.set(ylabel="|cosine| between tokens", ylim=(0, 1.03))
    show_integers(axis, "layer")
    label_lines(axis)


def draw_changes(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the change of log HFC/LFC in trained MiniLM by what each branch adds to the tokens."""
    trained = [row for row in rows if row["weights"] == "pretrained"]
    value = {(row["depth"], row["step"]): row["hfc_lfc"] for row in trained}
    value[0, "mlp"] = value[0, "input"]
    depths = range(1, max(row["depth"] for row in trained) + 1)
    changes = {
        "attention": [value[d, "residual"] / value[d - 1, "mlp"] for d in depths],
        "MLP": [value[d, "mlp_residual"] / value[d, "norm"] for d in depths],
    }
    for (label, ratios), shift, color in zip(
        changes.items(), (-0.2, 0.2), ("C1", "C2"), strict=True
    ):
        axis.bar([d + shift for d in depths], np.log(ratios), 0.4, color=color, label=label)
    axis.axhline(0, color=mpl.rcParams["text.color"], linewidth=0.6)
    axis.set_title("what smooths trained MiniLM")
    axis.set_ylabel("change of log HFC/LFC")
    axis.legend()
    show_integers(axis, "layer")


def label_lines(axis: Axes) -> None:
    """Write the name of each line at its right end, in its color, apart from the other names."""
    to_share = axis.transData + axis.transAxes.inverted()
    ends = {
        line.get_label(): (to_share.transform(line.get_xydata()[-1])[1], line.get_color())
        for line in axis.get_lines()
        if not str(line.get_label()).startswith("_")
    }
    place = -GAP
    free = 1.0 - GAP * (len(ends) - 1)  # so that the names above still fit
    for label, (height, color) in sorted(ends.items(), key=lambda item: item[1][0]):
        place = max(place + GAP, min(height, free))
        free += GAP
        axis.text(
            1.02, place, label, color=color, transform=axis.transAxes, fontsize=8, va="center"
        )


def draw_collapse(axis: Axes, rows: Sequence[Row], stack: str, measure: str) -> None:
    """Draw the mean of a measure by depth, and its range over seeds as a band."""
    for name in STACKED:
        mine = [row for row in rows if row["stack"] == stack and row["method"] == name]
        draw_by_depth(axis, mine, measure, LINES.get(name, OTHER), has_band=name in LINES)
    show_integers(axis, "layer")


def draw_by_depth(
    axis: Axes, rows: Sequence[Row], measure: str, style: Mapping[str, Any], has_band: bool = True
) -> None:
    """Draw one line: the mean over seeds at each depth, with their range."""
    depths = sorted({row["depth"] for row in rows})
    seeds = [select_values(rows, measure, depth=depth) for depth in depths]
    axis.plot(depths, [sum(values) / len(values) for values in seeds], **style)
    if has_band:
        low, high = map(min, seeds), map(max, seeds)
        axis.fill_between(
            depths, list(low), list(high), color=style["color"], alpha=0.15, linewidth=0
        )


def draw_stacks(results: Results) -> Figure:
    """Draw cosine and effective rank by depth, one column a stack."""
    figure, panels = make_panels(
        2 * len(STACKS), across=len(STACKS), height=2.2, width=WIDTH, sharex=True, sharey="row"
    )
    axes = list(panels)
    for row, measure in enumerate(("token_cosine", "effective_rank")):
        for column, (stack, title) in enumerate(STACKS.items()):
            axis = axes[row * len(STACKS) + column]
            draw_collapse(axis, results["stacks"], stack, measure)
            axis.set_title(title if row == 0 else "")
            axis.set_ylim(bottom=0)
            axis.set_ylabel(MEASURES[measure])
            axis.label_outer()
    add_legend(figure)
    return figure
