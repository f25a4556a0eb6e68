"""Figures of measures by layer or step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attention_core.plots import panels
from attention_core.plots.panels import FULL_WIDTH, Axes, Figure, Lines

MEASURES = {
    "hfc_lfc": "high / low frequency of the tokens",
    "hfc_share": "high-frequency share of the tokens",
    "token_cosine": "|cosine| of tokens",
    "signed_token_cosine": "cosine of tokens",
    "effective_rank": "effective rank of the tokens",
    "high_frequency_norm": "high-frequency norm of the tokens",
    "map_cosine": "|cosine| of the map's columns",
    "relative_entropy": "entropy of attention / log n",
}
PROFILE = ("hfc_lfc", "token_cosine", "effective_rank")
NAMED_MARKERS = 24  # a marker each, up to so many points
Values = Sequence[float | None]  # None where it is undefined
Curve = Values | tuple[Sequence[float], Values]


def draw_curves(
    axis: Axes, curves: Mapping[str, Curve], lines: Lines | None = None, **style: Any
) -> None:
    """Draw a line for each label: values by index, or a pair of places and values."""
    for label, curve in curves.items():
        x, y = curve if isinstance(curve, tuple) else (range(len(curve)), curve)
        y = [math.nan if value is None else value for value in y]
        marked = {"marker": "o", "markersize": 3} if len(y) <= NAMED_MARKERS else {}
        axis.plot(
            x, y, label=label, **{**marked, **panels.get_line(lines, [*curves], label), **style}
        )


def plot_curves(
    titled: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabel: str = "",
    lines: Lines | None = None,
    width: float = FULL_WIDTH,
    **options: Any,
) -> Figure:
    """Plot labeled curves in a panel for each title; `options` are those of `Axes.set`."""
    figure, axes = panels.make_panels(len(titled), width=width)
    for axis, (title, curves) in zip(axes, titled.items(), strict=True):
        draw_curves(axis, curves, lines)
        axis.set(title=title, ylabel=ylabel, **options)
        panels.show_integers(axis, xlabel)
    if lines is None:
        panels.add_legend(figure)
    return figure


def plot_depth_profiles(
    methods: Mapping[str, Mapping[str, Any]],
    measures: Sequence[str] = PROFILE,
    lines: Lines | None = None,
    width: float = FULL_WIDTH,
) -> Figure:
    """Plot measures of the tokens after the embedding (0) and after each block."""
    titled = {
        MEASURES.get(name, name): {m: p[name] for m, p in methods.items() if name in p}
        for name in measures
    }
    return plot_curves(titled, "block", lines=lines, width=width)
