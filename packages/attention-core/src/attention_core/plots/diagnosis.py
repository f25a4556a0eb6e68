"""Figures of a diagnosis: the change by each step, and the picture of the whole report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attention_core.plots import panels
from attention_core.plots.depth import MEASURES, draw_curves
from attention_core.plots.panels import Axes, Figure
from attention_core.plots.spectra import SMALLEST

# the colors of what adds to the tokens
CHANGE_COLORS = {"attention": "C0", "cross-attention": "C4", "MLP": "C2", "convolution": "C5",
                 "skip": "C7", "norm": "C3"}  # fmt: skip
Depth = dict[int, Mapping[str, Any]]  # tokens by the number of layers passed
SHARES = ("smoothing", "tied", "sharpening")


def draw_changes(axis: Axes, layers: Sequence[Mapping[str, Any]]) -> None:
    """Draw the change of log(HFC/LFC) by each kind of step, as bars for each layer."""
    present = [kind for kind in CHANGE_COLORS if any(kind in x["changes"] for x in layers)]
    places = place_layers(layers)
    for place, kind in enumerate(present):
        drawn = {i: x["changes"][kind] for i, x in places.items() if kind in x["changes"]}
        width = 0.8 / len(present)
        x = [i + (place - (len(present) - 1) / 2) * width for i in drawn]
        axis.bar(x, [*drawn.values()], width, color=CHANGE_COLORS[kind], label=kind)
    axis.axhline(0, color="0.5", linewidth=0.8)
    axis.set_title("change of log HFC/LFC by each step", pad=7 + 11 * -(-len(present) // 3))
    if present:
        _name_bars(axis)
    panels.show_integers(axis, "layer")


def plot_diagnosis(diagnosis: Any, theme: str = "light", width: float = 9.6) -> Figure:
    """Plot a diagnosis, or what its `to_dict` returns, in six panels and the colors of a theme.

    Layers count from 0; in bars, those of a decoder follow its encoder.
    """
    content = diagnosis if isinstance(diagnosis, Mapping) else diagnosis.to_dict()
    layers = content["layers"]
    with panels.use_style(theme):
        figure, axes = panels.make_panels(6, max(1, min(3, int(width / 2.8))), 2.5, width)
        depth = _find_outputs(layers)
        for name in ("hfc_lfc", "token_cosine"):
            _draw_depth(next(axes), name, depth, content.get("limits", {}).get(name))
        draw_changes(next(axes), layers)
        _draw_responses(next(axes), layers)
        tokens = [measures for stack in depth.values() for measures in stack.values()]
        _draw_singular_values(next(axes), tokens)
        _draw_shares(next(axes), layers)
        figure.suptitle(f"{content['model']}: {content['num_tokens']} tokens", fontsize=9)
        figure.set_facecolor(panels.BACKGROUND[theme])
    return figure


def _draw_depth(axis: Axes, name: str, stacks: Mapping[str, Depth], limit: float | None) -> None:
    for i, (stack, depth) in enumerate(stacks.items()):
        values = [tokens[f"trimmed_{name}"] for tokens in depth.values()]
        draw_curves(axis, {stack: ([*depth], values)}, color=f"C{i}")
        height = limit
        if limit is not None and name == "hfc_lfc":  # a factor of the first value
            height = limit * values[0] if values and values[0] else None
        if height is not None:
            axis.axhline(height, color=f"C{i}", linewidth=0.8, linestyle="--")
    axis.set_title(MEASURES[name])
    if len(stacks) > 1:
        axis.legend(fontsize=7)
    panels.show_integers(axis, "number of layers passed")


def _find_outputs(layers: Sequence[Mapping[str, Any]]) -> dict[str, Depth]:
    """Return the measures of the first input and of each output, by the layers passed."""
    found: dict[str, Depth] = {}
    for layer in layers:
        steps, index = [*layer["steps"].values()], layer["index"]
        if steps:
            depth = found.setdefault(layer.get("stack", "model"), {index: steps[0]})
            depth[index + 1] = steps[-1]
    return found


def place_layers(layers: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the layers by their places: their indices, behind those of the stacks before."""
    offsets: dict[str, int] = {}
    placed: dict[int, Mapping[str, Any]] = {}
    for layer in layers:
        offset = offsets.setdefault(layer.get("stack", "model"), max(placed, default=-1) + 1)
        placed[offset + layer["index"]] = layer
    return placed


def _name_bars(axis: Axes) -> None:
    axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=3, fontsize=7,
                handlelength=1, columnspacing=1)  # fmt: skip


def _draw_responses(axis: Axes, layers: Sequence[Mapping[str, Any]]) -> None:
    heads = [
        [[math.nan if value is None else value for value in head] for head in layer["responses"]]
        for layer in layers
    ]
    means = [torch.tensor(x, dtype=torch.float64).nanmean(0).tolist() if x else [] for x in heads]
    _draw_shades(axis, means)
    axis.set(title="response, faint (early) to strong (late)", ylabel="gain")
    panels.use_log_scale(axis)
    axis.set(xlabel="frequency / Nyquist", xlim=(0, 1))


def _draw_singular_values(axis: Axes, depth: Sequence[Mapping[str, Any]]) -> None:
    shown = [[v / s[0] for v in s] for x in depth if (s := x["singular_values"]) and s[0]]
    _draw_shades(axis, shown, from_one=True)
    axis.set(title="singular values of the tokens", ylabel="value / largest")
    if shown:
        axis.set_ylim(max(SMALLEST, min(map(min, shown)) / 2), 2)
    panels.use_log_scale(axis)
    panels.show_integers(axis, "index")


def _draw_shades(axis: Axes, curves: Sequence[Sequence[float]], from_one: bool = False) -> None:
    for i, curve in enumerate(curves, start=1):
        places = range(1, len(curve) + 1) if from_one else torch.linspace(0, 1, len(curve)).tolist()
        axis.plot(places, curve, color="C0", alpha=0.2 + 0.75 * i / len(curves), linewidth=1.2)


def _draw_shares(axis: Axes, layers: Sequence[Mapping[str, Any]]) -> None:
    placed = place_layers(layers)
    known = {i: layer for i, layer in placed.items() if layer.get("eigenvalue_shares")}
    axis.set(ylabel="share of heads, samples", ylim=(0, 1))
    axis.set_title("dominating eigenvalues", pad=18)
    panels.show_integers(axis, "layer")
    if not known:
        axis.text(0.5, 0.5, "projections unknown", ha="center", transform=axis.transAxes)
        return
    bottom = [0.0] * len(known)
    for place, kind in enumerate(SHARES):
        share = [layer["eigenvalue_shares"][kind] for layer in known.values()]
        axis.bar([*known], share, 0.8, bottom, color=f"C{(0, 7, 1)[place]}", label=kind)
        bottom = [b + s for b, s in zip(bottom, share, strict=True)]
    _name_bars(axis)
