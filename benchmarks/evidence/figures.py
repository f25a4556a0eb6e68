"""Figures of the page and of the README, for light and for dark pages."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from attention_core.plots import MEASURES, add_legend, make_panels, render_figure
from attention_core.plots.panels import show_integers
from experiment_kit.run import write_atomically
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.evidence.methods import STACKED, TRAINED
from benchmarks.evidence.runner import Row, mean_interval
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.signs import LABELS
from benchmarks.evidence.stacks import STACKS
from benchmarks.evidence.tables import select_values

WIDTH = 9.7  # inches: the width of a page on GitHub
THEMES = ("light", "dark")
# a color and a dash for what both measurements show; the others are thin and share one color
LINES: dict[str, dict[str, Any]] = {
    "residual": {"color": "C4", "linestyle": "dashed"},
    "plain": {"color": "C1"},
    "gfsa_negative": {"color": "C0", "linestyle": "dashdot"},
    "centered": {"color": "C3", "linestyle": (0, (5, 1))},
    "polynomial": {"color": "C2"},
}
OTHER = {"color": "C7", "linestyle": "dotted", "linewidth": 1.0}
# dash of each range, and where its label is in the panel
SPECTRA: dict[str, tuple[str, tuple[float, float]]] = {
    "positive": ("dotted", (0.16, 0.33)),
    "negative": ("solid", (0.75, 0.62)),
    "mixed": ("dashed", (0.66, 0.33)),
}
FLOOR = 1e-6  # smaller ratios are drawn here: double precision rounds at 1e-16


def write_figures(results: Mapping[str, list[Row]], settings: Settings, folder: Path) -> list[Path]:
    """Write each figure for light and for dark pages; the same results give the same files."""
    paths = []
    for name, draw in (("evidence", draw_summary), ("evidence-stacks", draw_stacks)):
        for theme in THEMES:
            paths.append(folder / f"{name}-{theme}.svg")
            content = render_figure(partial(draw, results, settings), theme=theme)
            write_atomically(paths[-1], content)
    return paths


def draw_summary(results: Mapping[str, list[Row]], settings: Settings) -> Figure:
    """Draw the README's figure: collapse, the sign of the eigenvalues, and the task."""
    figure, panels = make_panels(3, height=3.3, width=WIDTH)
    collapse, signs, task = panels
    draw_collapse(collapse, results["stacks"], "attention", "token_cosine")
    collapse.set_title(f"{max(settings.stacks.depths)} random layers of attention alone")
    collapse.set(ylabel="|cosine| between tokens (1: all equal)", ylim=(0, 1.03))
    draw_signs(signs, results["signs"])
    draw_task(task, results["task"], settings)
    add_legend(figure)
    return figure


def draw_collapse(axis: Axes, rows: Sequence[Row], stack: str, measure: str) -> None:
    """Draw the mean of a measure by depth, its interval as a band, one line a method."""
    depths = sorted({row["depth"] for row in rows})
    for name, method in STACKED.items():
        seeds = [
            select_values(rows, measure, stack=stack, method=name, depth=depth) for depth in depths
        ]
        means, halves = zip(*map(mean_interval, seeds), strict=True)
        label = method.label if name in LINES else "other mechanisms"
        (line,) = axis.plot(depths, means, label=label, **LINES.get(name, OTHER))
        if name in LINES:
            low, high = (
                [mean + sign * half for mean, half in zip(means, halves, strict=True)]
                for sign in (-1, 1)
            )
            axis.fill_between(depths, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    show_integers(axis, "layer")


def draw_signs(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw HFC/LFC by depth under X + A X W with a fixed A, one line a seed."""
    fixed = [row for row in rows if row["map"] == "fixed"]
    depths = sorted({row["depth"] for row in fixed})
    ink = mpl.rcParams["text.color"]
    for spectrum, (dash, place) in SPECTRA.items():
        for seed in sorted({row["seed"] for row in fixed}):
            values = select_values(fixed, "hfc_lfc", seed=seed, spectrum=spectrum)
            ratios = [max(value, FLOOR) for value in values]
            axis.plot(
                [depth + 1 for depth in depths], ratios, color=ink, linestyle=dash, linewidth=1
            )
        axis.text(*place, f"in {LABELS[spectrum]}", transform=axis.transAxes, ha="center")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="layer + 1",
        ylabel="HFC / LFC of the tokens, at least 1e-6",
    )
    axis.set_ylim(bottom=FLOOR / 2)
    axis.set_title("x + A x W, by the eigenvalues of W")


def draw_task(axis: Axes, rows: Sequence[Row], settings: Settings) -> None:
    """Draw the accuracy by number of layers: every seed, and the mean of each method."""
    depths = settings.task.depths
    usual = [row for row in rows if row["steps"] == settings.task.steps]
    # those that are drawn alike come first, below the others
    names = sorted(TRAINED, key=lambda name: name in LINES)
    for index, name in enumerate(names):
        style = LINES.get(name, OTHER)
        shift = 0.02 * (index - (len(names) - 1) / 2)  # seeds would hide each other
        seeds = [
            [100 * value for value in select_values(usual, "accuracy", method=name, depth=depth)]
            for depth in depths
        ]
        label = TRAINED[name].label if name in LINES else "other mechanisms"
        axis.plot([sum(values) / len(values) for values in seeds], label=label, **style)
        for place, values in enumerate(seeds):
            places = [place + shift] * len(values)
            axis.plot(places, values, "o", color=style["color"], markersize=2.5)
    axis.axhline(100 / settings.task.vocabulary, color=mpl.rcParams["text.color"], linewidth=0.6)
    axis.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axis.set(xlabel="layers", ylabel="accuracy in % (line: chance)", ylim=(0, 103))
    axis.set_title("naming tokens, attention without residual")


def draw_stacks(results: Mapping[str, list[Row]], settings: Settings) -> Figure:
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
