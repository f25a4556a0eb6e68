"""Figures of a diagnosis: the steps of each block, and the picture of the whole report."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from attention_core.plots.depth import MEASURES, draw_curves
from attention_core.plots.panels import (
    BACKGROUND,
    FULL_WIDTH,
    make_panels,
    show_integers,
    use_log_scale,
    use_style,
)
from attention_core.plots.spectra import SMALLEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# the name and the color of each step; a block with norms after its sums has five
STEP_STYLES = {
    "attention": ("attention", "C0"),
    "residual": ("+ residual", "C1"),
    "norm": ("norm", "C3"),
    "mlp_residual": ("MLP + residual", "C2"),
    "mlp": ("MLP", "C2"),
}
OUTPUT_NORM = ("output norm", "C4")  # the last step of such a block
NAMES_IN_ROW = 3  # in a legend
SHARES = ("smoothing", "tied", "sharpening")


def plot_attribution(
    diagnosis: Mapping[str, Any], measure: str = "hfc_lfc", width: float = FULL_WIDTH
) -> "Figure":
    """Plot how far each step of a block raises or lowers a measure of its input, by layer."""
    figure, axes = make_panels(1, width=width)
    draw_attribution(next(axes), diagnosis["layers"], measure)
    return figure


def draw_attribution(
    axis: "Axes", layers: Sequence[Mapping[str, Any]], measure: str = "hfc_lfc"
) -> None:
    """Draw the change of a measure from the step before, as bars: the log of the ratio.

    The attention branch, and the sum of it and the input, are compared with the input of the
    block, every later step with the one before it.
    """
    present = [s for s in STEP_STYLES if any(s in layer["steps"] for layer in layers)]
    for place, step in enumerate(present):
        changes = [_log_ratio(layer["steps"], step, measure) for layer in layers]
        found = zip((layer["index"] for layer in layers), changes, strict=True)
        drawn = [(x, y) for x, y in found if y is not None]
        offset = (place - (len(present) - 1) / 2) * 0.8 / len(present)
        x, y = [x + offset for x, _ in drawn], [y for _, y in drawn]
        label, color = STEP_STYLES[step]
        if step == "mlp" and "mlp_residual" in present:
            label, color = OUTPUT_NORM
        axis.bar(x, y, 0.8 / len(present), color=color, label=label)
    axis.axhline(0, color="0.5", linewidth=0.8)
    axis.set(ylabel="log of the ratio")
    name = "HFC/LFC" if measure == "hfc_lfc" else MEASURES.get(measure, measure)
    axis.set_title(f"change of {name} by each step", pad=18 if len(present) <= NAMES_IN_ROW else 30)
    _name_bars(axis)
    show_integers(axis, "layer")


def plot_diagnosis(diagnosis: Any, theme: str = "light", width: float = 9.6) -> "Figure":
    """Plot a diagnosis, or what its `to_dict` returns, in six panels and the colors of a theme.

    They are HFC/LFC and cosine by depth, the steps of each block, the response of the maps, the
    singular values of the tokens, and the shares of dominating eigenvalues. Layers count from 0,
    as in the report.
    """
    content = diagnosis if isinstance(diagnosis, Mapping) else diagnosis.to_dict()
    layers = content["layers"]
    with use_style(theme):
        figure, axes = make_panels(6, max(1, min(3, int(width / 2.8))), 2.5, width)
        depth = _find_outputs(layers)
        for name in ("hfc_lfc", "signed_token_cosine"):
            axis = next(axes)
            curve = [*depth], [measures[name] for measures in depth.values()]
            draw_curves(axis, {"tokens": curve})
            axis.set_title(MEASURES[name])
            show_integers(axis, "number of layers passed")
        draw_attribution(next(axes), layers)
        _draw_responses(next(axes), [_average_heads(layer["responses"]) for layer in layers])
        _draw_singular_values(next(axes), [*depth.values()])
        _draw_shares(next(axes), layers)
        figure.suptitle(f"{content['model']}: {content['num_tokens']} tokens", fontsize=9)
        figure.set_facecolor(BACKGROUND[theme])
    return figure


def _find_outputs(layers: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the measures of the first input, and of each output, by the number of layers before.

    This is the index of the first layer, and that of each layer plus one: some may be left out.
    """
    known = [layer for layer in layers if layer["steps"]]
    found = {layer["index"]: layer["steps"]["input"] for layer in layers[:1] if layer in known}
    return found | {layer["index"] + 1: [*layer["steps"].values()][-1] for layer in known}


def _name_bars(axis: "Axes") -> None:
    axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=NAMES_IN_ROW, fontsize=7,
                handlelength=1, columnspacing=1)  # fmt: skip


def _log_ratio(steps: Mapping[str, Mapping[str, Any]], step: str, measure: str) -> float | None:
    names = list(steps)
    if step not in names or names[0] != "input":
        return None
    before = "input" if step in ("attention", "residual") else names[names.index(step) - 1]
    a, b = steps[before][measure], steps[step][measure]
    return math.log(b / a) if a and b else None


def _average_heads(heads: Sequence[Sequence[float | None]]) -> list[float]:
    values = [[math.nan if value is None else value for value in head] for head in heads]
    return torch.tensor(values, dtype=torch.float64).nanmean(0).tolist() if values else []


def _draw_responses(axis: "Axes", responses: Sequence[Sequence[float]]) -> None:
    _draw_shades(axis, responses)
    axis.set(title="response, faint (early) to strong (late)", ylabel="gain")
    use_log_scale(axis)
    axis.set(xlabel="frequency / Nyquist", xlim=(0, 1))


def _draw_singular_values(axis: "Axes", depth: Sequence[Mapping[str, Any]]) -> None:
    values = [tokens["singular_values"] for tokens in depth]
    shown = [[v / s[0] for v in s] for s in values if s and s[0]]
    _draw_shades(axis, shown, from_one=True)
    axis.set(title="singular values of the tokens", ylabel="value / largest")
    if shown:
        axis.set_ylim(max(SMALLEST, min(map(min, shown)) / 2), 2)
    use_log_scale(axis)
    show_integers(axis, "index")


def _draw_shades(axis: "Axes", curves: Sequence[Sequence[float]], from_one: bool = False) -> None:
    for i, curve in enumerate(curves, start=1):
        places = range(1, len(curve) + 1) if from_one else torch.linspace(0, 1, len(curve)).tolist()
        axis.plot(places, curve, color="C0", alpha=0.2 + 0.75 * i / len(curves), linewidth=1.2)


def _draw_shares(axis: "Axes", layers: Sequence[Mapping[str, Any]]) -> None:
    known = [layer for layer in layers if layer.get("eigenvalue_shares")]
    axis.set(ylabel="share of heads, samples", ylim=(0, 1))
    axis.set_title("dominating eigenvalues", pad=18)
    show_integers(axis, "layer")
    if not known:
        axis.text(0.5, 0.5, "projections unknown", ha="center", transform=axis.transAxes)
        return
    bottom = [0.0] * len(known)
    for place, kind in enumerate(SHARES):
        share = [layer["eigenvalue_shares"][kind] for layer in known]
        x = [layer["index"] for layer in known]
        axis.bar(x, share, 0.8, bottom, color=f"C{(0, 7, 1)[place]}", label=kind)
        bottom = [b + s for b, s in zip(bottom, share, strict=True)]
    _name_bars(axis)
