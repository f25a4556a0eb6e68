"""Figures of the page and of the README, for light and for dark pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from experiment_kit.run import write_atomically
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.evidence.methods import STACKED, TRAINED
from benchmarks.evidence.runner import Row, mean_interval
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.signs import LABELS
from benchmarks.evidence.stacks import STACKS
from benchmarks.evidence.tables import select_values

THEMES = {"light": "#1f2328", "dark": "#e6edf3"}  # the text colors of GitHub's pages
# told apart with any kind of color vision, and on white as on black; None is the text's color
COLORS = {
    "residual": "#8c8c8c",
    "plain": None,
    "gfsa_negative": "#2f81d6",
    "centered": "#e69f00",
    "polynomial": "#009e73",
    "contranorm": "#cc79a7",
}
SPECTRA = {"positive": None, "mixed": "#e69f00", "negative": "#009e73"}
OTHER = "#8c8c8c"
FLOOR = 1e-6  # below, ratios are drawn at the bottom: double precision rounds at 1e-16


def write_figures(results: Mapping[str, list[Row]], settings: Settings, folder: Path) -> list[Path]:
    """Write each figure for light and for dark pages; the same results give the same files."""
    paths = []
    with mpl.rc_context({"svg.hashsalt": "allpass", "font.size": 9}):
        for name, draw in (("evidence", draw_summary), ("evidence-stacks", draw_stacks)):
            for theme, color in THEMES.items():
                themed = {f"{part}.color": color for part in ("text", "xtick", "ytick")}
                with mpl.rc_context({**themed, "axes.labelcolor": color}):
                    figure = draw(results, settings, color)
                    path = folder / f"{name}-{theme}.svg"
                    write_atomically(path, lambda file, figure=figure: figure.savefig(
                        file, format="svg", transparent=True, metadata={"Date": None}))  # fmt: skip
                    paths.append(path)
    return paths


def draw_summary(results: Mapping[str, list[Row]], settings: Settings, color: str) -> Figure:
    """Draw the README's figure: collapse, the sign of the eigenvalues, and the task."""
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    collapse, signs, task = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    draw_collapse(collapse, results["stacks"], "attention", "token_cosine", color)
    collapse.set_title(f"{max(settings.stacks.depths)} random layers, attention alone", fontsize=10)
    collapse.set_ylabel("cosine between tokens")
    collapse.set_ylim(0, 1.03)
    draw_signs(signs, results["signs"], color)
    draw_task(task, results["task"], settings, color)
    handles, labels = task.get_legend_handles_labels()
    others, other_labels = collapse.get_legend_handles_labels()
    pairs = dict(zip(labels + other_labels, handles + others, strict=True))
    figure.legend(pairs.values(), pairs.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_collapse(axes: Axes, rows: Sequence[Row], stack: str, measure: str, color: str) -> None:
    """Draw a measure by depth, one line a method; those without a color of their own are gray."""
    for name, method in STACKED.items():
        own = name in COLORS
        depths = sorted({row["depth"] for row in rows})
        means, halves = zip(*(
            mean_interval(select_values(rows, measure, stack=stack, method=name, depth=depth))
            for depth in depths
        ), strict=True)  # fmt: skip
        axes.plot(
            depths, means, color=(COLORS[name] or color) if own else OTHER,
            linewidth=1.8 if own else 0.9, linestyle="-" if own else ":", zorder=3 if own else 2,
            label=method.label if own else "others",
        )  # fmt: skip
        low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
        if own:
            axes.fill_between(depths, low, high, color=COLORS[name] or color, alpha=0.15, lw=0)
    style_axes(axes)
    axes.set_xlabel("layer")


def draw_signs(axes: Axes, rows: Sequence[Row], color: str) -> None:
    """Draw HFC/LFC by depth under X + A X W with a fixed A, one line a seed."""
    fixed = [row for row in rows if row["map"] == "fixed"]
    for spectrum, label in LABELS.items():
        for seed in sorted({row["seed"] for row in fixed}):
            line = [r for r in fixed if r["seed"] == seed and r["spectrum"] == spectrum]
            axes.plot(
                [max(row["depth"], 0.5) for row in line],
                [max(row["hfc_lfc"], FLOOR) for row in line],
                color=SPECTRA[spectrum] or color, linewidth=1.1,
                linestyle="--" if spectrum == "mixed" else "-",
                label=f"in {label}" if seed == 0 else None,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="layer", ylabel="HFC / LFC of tokens")
    axes.set_ylim(bottom=FLOOR)
    axes.set_title("x + A x W: the eigenvalues of W decide", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    style_axes(axes)


def draw_task(axes: Axes, rows: Sequence[Row], settings: Settings, color: str) -> None:
    """Draw the accuracy by number of layers: every seed, and the mean of each method."""
    usual = [row for row in rows if row["steps"] == settings.task.steps]
    shown = [name for name in TRAINED if name in COLORS]
    for index, name in enumerate(shown):
        paint = COLORS[name] or color
        shift = 0.09 * (index - (len(shown) - 1) / 2)
        places = [place + shift for place in range(len(settings.task.depths))]
        values = [
            [100 * value for value in select_values(usual, "accuracy", method=name, depth=depth)]
            for depth in settings.task.depths
        ]
        for place, seeds in zip(places, values, strict=True):
            axes.plot([place] * len(seeds), seeds, "o", color=paint, markersize=2.5, alpha=0.55)
        axes.plot(
            places, [sum(seeds) / len(seeds) for seeds in values], marker="_", markersize=9,
            markeredgewidth=2, color=paint, linewidth=1, label=TRAINED[name].label,
            linestyle="--" if name == "residual" else "-",
        )  # fmt: skip
    chance = 100 / settings.task.vocabulary
    axes.axhline(chance, color=color, linewidth=0.7, linestyle=":")
    axes.set_xticks(range(len(settings.task.depths)), [str(d) for d in settings.task.depths])
    axes.set(xlabel="layers without attention's residual", ylabel="accuracy in %", ylim=(0, 103))
    axes.set_title("naming each token, after training", fontsize=10)
    style_axes(axes)


def draw_stacks(results: Mapping[str, list[Row]], settings: Settings, color: str) -> Figure:
    """Draw cosine and effective rank by depth, one column a stack."""
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    grid = figure.subplots(2, len(STACKS), sharex=True, sharey="row")
    for column, (stack, title) in enumerate(STACKS.items()):
        for row, measure in enumerate(("token_cosine", "effective_rank")):
            draw_collapse(grid[row][column], results["stacks"], stack, measure, color)
        grid[0][column].set_title(title, fontsize=9)
        grid[0][column].set_xlabel("")
    grid[0][0].set(ylabel="cosine between tokens", ylim=(0, 1.03))
    grid[1][0].set(ylabel="effective rank", ylim=(0, None))
    handles, labels = grid[0][0].get_legend_handles_labels()
    pairs = dict(zip(labels, handles, strict=True))
    figure.legend(pairs.values(), pairs.keys(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def style_axes(axes: Axes) -> None:
    """Leave the background of the page, a light grid, and no frame."""
    axes.set_facecolor("none")
    axes.grid(alpha=0.25)
    axes.spines[:].set_visible(False)
