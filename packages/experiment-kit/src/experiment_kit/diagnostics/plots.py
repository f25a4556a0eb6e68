"""Figures of training curves and spectral measures, for TensorBoard and for pages.

They are drawn without pyplot's global state. `methods` maps names of methods to their data, `lines`
to the style of their line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

MEASURES = {
    "hfc_lfc": "high / low frequency of the tokens",
    "token_cosine": "cosine similarity of tokens",
    "effective_rank": "effective rank of the tokens",
}
MAX_POINTS = 200  # of a curve: more are not visible and make a page large
Lines = Mapping[str, dict[str, Any]]


def plot_training_curves(
    methods: Mapping[str, Mapping[str, pd.DataFrame]], lines: Lines | None = None
) -> Figure:
    """Plot each tag in a panel: the mean over seeds as a line, lowest to highest as a band."""
    tags = list(dict.fromkeys(tag for frames in methods.values() for tag in frames))
    figure, axes = _make_panels(len(tags), min(len(tags), 3), 3.0)
    for axis, tag in zip(axes, tags, strict=True):
        axis.set(title=tag, xlabel="optimizer step")
        for method, frames in methods.items():
            if tag not in frames:
                continue
            frame = frames[tag]
            points = np.linspace(0, len(frame) - 1, min(len(frame), MAX_POINTS)).round()
            frame = frame.iloc[points.astype(int)]
            axis.plot(frame.index, frame["mean"], **_get_style(lines, method))
            color = _get_style(lines, method)["color"]
            axis.fill_between(
                frame.index, frame["low"], frame["high"], color=color, alpha=0.15, linewidth=0
            )
    return figure


def plot_depth_profiles(
    methods: Mapping[str, Mapping[str, Any]], lines: Lines | None = None
) -> Figure:
    """Plot smoothness measures of the tokens after the embedding (0) and after each block."""
    figure, axes = _make_panels(len(MEASURES), len(MEASURES), 2.9)
    for axis, (name, title) in zip(axes, MEASURES.items(), strict=True):
        axis.set(title=title, xlabel="block")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        for method, profile in methods.items():
            axis.plot(profile[name], marker="o", markersize=3.5, **_get_style(lines, method))
    return figure


def plot_frequency_responses(
    methods: Mapping[str, Sequence[Any]], lines: Lines | None = None
) -> Figure:
    """Plot the gain at each frequency, a panel per method and a line per layer."""
    across = min(max(len(methods), 2), 4)
    figure, axes = _make_panels(len(methods), across, 2.4, sharey=True)
    for axis, (method, layers) in zip(axes, methods.items(), strict=True):
        axis.set(title=method, xlabel="frequency / Nyquist", xlim=(0, 1), yscale="log")
        color = _get_style(lines, method)["color"]
        for i, gains in enumerate(layers, start=1):
            line = {"color": color, "alpha": 0.3 + 0.7 * i / len(layers)}
            axis.plot(np.linspace(0, 1, len(gains)), gains, **line)
    return figure


def _get_style(lines: Lines | None, method: str) -> dict[str, Any]:
    return lines[method] if lines else {"color": "C0"}


def _make_panels(
    count: int, across: int, height: float, **options: Any
) -> tuple[Figure, Iterator[Axes]]:
    down = -(-count // across)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(9.6, height * down), layout=layout, facecolor="none")
    axes = figure.subplots(down, across, squeeze=False, **options).ravel().tolist()
    for axis in axes:
        axis.set_facecolor("none")
    for spare in axes[count:]:
        spare.remove()
    return figure, iter(axes[:count])
