"""Figures of spectra: responses of maps to frequencies and singular values, and tokens' values."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attention_core.plots import panels
from attention_core.plots.depth import MEASURES, draw_curves
from attention_core.plots.panels import FULL_WIDTH, Axes, Figure, Lines

FREQUENCY = "frequency / Nyquist"
SMALLEST = 1e-6  # times the largest singular value: smaller ones are rounding


def plot_frequency_responses(
    methods: Mapping[str, Sequence[Any]], lines: Lines | None = None, width: float = FULL_WIDTH
) -> Figure:
    """Plot the gain at each frequency, a panel per method and a line per layer."""
    across = min(max(len(methods), 2), max(1, int(width / 2)), 4)
    figure, axes = panels.make_panels(len(methods), across, width=width, sharey=True)
    for axis, (method, layers) in zip(axes, methods.items(), strict=True):
        axis.set(title=method, xlabel=FREQUENCY, ylabel="gain", xlim=(0, 1))
        color = panels.get_line(lines, [*methods], method)["color"]
        for i, gains in enumerate(layers, start=1):
            line = {"color": color, "alpha": 0.25 + 0.7 * i / len(layers)}
            axis.plot(_space_frequencies(gains), gains, **line)
        panels.use_log_scale(axis)
        axis.label_outer()
    return figure


def draw_responses(
    axis: Axes, methods: Mapping[str, Sequence[float]], lines: Lines | None = None
) -> None:
    """Draw the gain at each frequency, a line for each method; the mean response of its heads."""
    curves = {label: (_space_frequencies(gains), gains) for label, gains in methods.items()}
    draw_curves(axis, curves, lines, marker="")
    axis.set(xlabel=FREQUENCY, ylabel="gain", xlim=(0, 1))
    panels.use_log_scale(axis)


def plot_smoothing(
    methods: Mapping[str, Mapping[str, Any]], lines: Lines | None = None, width: float = FULL_WIDTH
) -> Figure:
    """Plot `response`, `signed_token_cosine` and `singular_values` of methods, a panel for each.

    A quantity that no method has gets no panel. The panels are those of figure 2 of
    https://arxiv.org/abs/2312.04234; `singular_response`, pairs of singular values and gains,
    adds the filter in that domain.
    """
    names = ("response", "signed_token_cosine", "singular_values", "singular_response")
    found = {
        name: {label: data[name] for label, data in methods.items() if data.get(name)}
        for name in names
        if any(data.get(name) for data in methods.values())
    }
    figure, axes = panels.make_panels(len(found), width=width)
    titles = {"response": "filter response", "singular_values": "singular values",
              "singular_response": "response by singular value"}  # fmt: skip
    for letter, axis, (name, curves) in zip("abcd", axes, found.items(), strict=False):
        style = lines or {m: panels.get_line(None, [*methods], m) for m in methods}
        if name == "response":
            draw_responses(axis, curves, style)
        elif name == "singular_values":
            shown = {m: (range(1, len(v) + 1), [x / v[0] for x in v]) for m, v in curves.items()}
            draw_curves(axis, shown, style, marker="")
            axis.set_ylabel("singular value / largest")
            if min(min(y) for _, y in shown.values()) < SMALLEST:
                axis.set_ylim(SMALLEST, 2)
            panels.use_log_scale(axis)
            panels.show_integers(axis, "index")
        elif name == "singular_response":
            draw_curves(axis, curves, style, marker="")
            axis.set(xlabel="singular value of A", ylabel="gain")
        else:
            draw_curves(axis, curves, style)
            axis.set_ylabel("mean over pairs")
            panels.show_integers(axis, "block")
        axis.set_title(f"({letter}) {titles.get(name, MEASURES.get(name))}")
    if lines is None:
        panels.add_legend(figure, methods)
    return figure


def _space_frequencies(gains: Sequence[float]) -> list[float]:
    return torch.linspace(0, 1, len(gains), dtype=torch.float64).tolist()
