"""Figures of training curves, and those of attention_core, for TensorBoard and for pages."""

from collections.abc import Mapping

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
