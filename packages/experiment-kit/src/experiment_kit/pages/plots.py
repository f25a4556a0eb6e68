"""Figures of training curves, and those of attention_core, for TensorBoard and for pages."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from attention_core import plots
from attention_core.plots import Lines, plot_depth_profiles, plot_frequency_responses
from attention_core.plots.depth import PROFILE
from attention_core.plots.panels import get_line, make_panels, show_integers
from matplotlib.figure import Figure

__all__ = [
    "MEASURES",
    "plot_depth_profiles",
    "plot_frequency_responses",
    "plot_importances",
    "plot_slices",
    "plot_training_curves",
]

MEASURES = {name: plots.MEASURES[name] for name in PROFILE}
MAX_POINTS = 200  # of a curve: more are not visible and make a page large
WIDTH = 9.6  # inches, of a page


def plot_training_curves(
    methods: Mapping[str, Mapping[str, pd.DataFrame]],
    lines: Lines | None = None,
    width: float = WIDTH,
    xlabel: str = "optimizer step",
) -> Figure:
    """Plot each tag in a panel: the mean over seeds as a line, lowest to highest as a band."""
    tags = list(dict.fromkeys(tag for frames in methods.values() for tag in frames))
    figure, axes = make_panels(len(tags), min(len(tags), max(1, int(width / 2.4)), 3), width=width)
    for axis, tag in zip(axes, tags, strict=True):
        for method, frames in methods.items():
            if tag not in frames:
                continue
            frame = frames[tag]
            points = np.linspace(0, len(frame) - 1, min(len(frame), MAX_POINTS)).round()
            frame = frame.iloc[points.astype(int)]
            line = get_line(lines, [*methods], method)
            # a curve of one point has no line
            marker = "o" if len(frame) == 1 else ""
            axis.plot(frame.index, frame["mean"], label=method, marker=marker, **line)
            band = {"color": line["color"], "alpha": 0.15, "linewidth": 0}
            if (frame["low"] < frame["high"]).any():  # several seeds
                axis.fill_between(frame.index, frame["low"], frame["high"], **band)
            if "raw" in frame:  # before smoothing
                faint = {"color": line["color"], "alpha": 0.3, "linewidth": 0.6}
                axis.plot(frame.index, frame["raw"], **faint)
        axis.set_title(tag)
        show_integers(axis, xlabel)
    if lines is None:
        plots.add_legend(figure, methods)
    return figure


def plot_slices(
    options: Mapping[str, Mapping[str, Sequence[float]]], ylabel: str, width: float = WIDTH
) -> Figure:
    """Plot the scores of the trials of each value, a panel for each option, and their means."""
    count = len(options)
    figure, axes = make_panels(count, min(count, max(1, int(width / 2.4))), width=width)
    for axis, (option, values) in zip(axes, options.items(), strict=True):
        points = [(x, score) for x, scores in enumerate(values.values()) for score in scores]
        means = [(x, np.mean(scores)) for x, scores in enumerate(values.values()) if len(scores)]
        axis.plot(*zip(*means, strict=True), color="C0", linewidth=1.0)
        axis.plot(*zip(*points, strict=True), "o", color="C0", alpha=0.5, markersize=4)
        turned = 30 if sum(map(len, values)) > 24 else 0
        axis.set_xticks(range(len(values)), [*values], rotation=turned)
        axis.set(title=option, ylabel=ylabel, xlim=(-0.5, len(values) - 0.5))
    return figure


def plot_importances(shares: Mapping[str, float], width: float = WIDTH / 2) -> Figure:
    """Plot the share of each option as a bar, the largest on top."""
    figure, (axis,) = make_panels(1, height=0.8 + 0.3 * len(shares), width=width)
    ordered = sorted(shares.items(), key=lambda item: item[1])
    names, values = zip(*ordered, strict=True)
    axis.barh(names, values, 0.6, color="C0")
    axis.set(title="importance", xlim=(0, 1))
    axis.grid(axis="x")
    axis.grid(visible=False, axis="y")
    return figure
