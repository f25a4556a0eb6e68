"""Curves over training, profiles over depth and frequency responses, one line per method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator

from experiment_kit.report import svg

Colours = Mapping[str, int]
POINTS = 200  # of a curve: more cannot be seen, and make the page large
DEPTH = {
    "hfc_lfc": "high / low frequency of the tokens",
    "token_cosine": "cosine similarity of tokens",
    "effective_rank": "effective rank of the tokens",
}


def curves(methods: Mapping[str, Mapping[str, pd.DataFrame]], colours: Colours, title: str) -> str:
    """Draw each tag in a panel: the mean over seeds as a line, lowest to highest as a band."""
    tags = list(dict.fromkeys(tag for frames in methods.values() for tag in frames))
    with rc_context(svg.STYLE):
        figure, axes = svg.panels(len(tags), min(len(tags), 3), 3.0)
        for axis, tag in zip(axes, tags, strict=True):
            axis.set(title=tag, xlabel="optimiser step")
            for method, frames in methods.items():
                if tag in frames:
                    _band(axis, _thinned(frames[tag]), svg.style(colours[method]))
        return svg.text(figure, title)


def depth(methods: Mapping[str, Mapping[str, np.ndarray]], colours: Colours, title: str) -> str:
    """Draw what happens to the tokens from the embedding (0) through each block."""
    with rc_context(svg.STYLE):
        figure, axes = svg.panels(len(DEPTH), len(DEPTH), 2.9)
        for axis, (key, name) in zip(axes, DEPTH.items(), strict=True):
            axis.set(title=name, xlabel="block")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            for method, profile in methods.items():
                line = svg.style(colours[method])
                axis.plot(profile[key], marker="o", markersize=3.5, **line)
        return svg.text(figure, title)


def responses(methods: Mapping[str, Sequence[np.ndarray]], colours: Colours, title: str) -> str:
    """Draw the gain at each frequency, a panel per method and a line per layer."""
    with rc_context(svg.STYLE):
        figure, axes = svg.panels(len(methods), min(max(len(methods), 2), 4), 2.4, share=True)
        for axis, (method, layers) in zip(axes, methods.items(), strict=True):
            axis.set(title=method, xlabel="frequency / Nyquist", xlim=(0, 1), yscale="log")
            for i, gains in enumerate(layers):
                x, share = np.linspace(0, 1, len(gains)), (i + 1) / len(layers)
                line = {**svg.style(colours[method]), "linestyle": "-", "alpha": 0.3 + 0.7 * share}
                axis.plot(x, gains, **line)
        return svg.text(figure, title)


def _band(axis: Any, frame: pd.DataFrame, line: dict[str, Any]) -> None:
    axis.plot(frame.index, frame["mean"], **line)
    axis.fill_between(
        frame.index, frame["low"], frame["high"], color=line["color"], alpha=0.15, linewidth=0
    )


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) <= POINTS:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, POINTS).round().astype(int)]
