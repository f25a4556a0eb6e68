"""The verdict of a diagnosis: does a model over-smooth, from which layer on, and what drives it.

The thresholds are constants of this file. Tokens with a ratio r = HFC/LFC have a mean cosine of
about 1 / (1 + r^2), so that a cosine of 0.9 is a ratio of about 1/3.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures

OVER_SMOOTHED_COSINE = 0.9  # absolute token cosine after the last layer, of over-smoothed tokens
SMOOTHED_FACTOR = 0.5  # HFC/LFC of smoothed tokens, last output over first input
SMALL_CHANGE = 0.05  # in log(HFC/LFC), summed over layers: a driver below it is not named
_NAMES = {
    "attention": "attention",
    "residual": "the residual sum",
    "mlp": "the MLP",
    "norm": "the norms",
}


def write_verdict(layers: list[LayerDiagnosis]) -> str:
    """Return three sentences on the layers of a model; on encoder and decoder each, if it has both.

    Over-smoothed is a model whose last layer's tokens have an absolute cosine of at least
    `OVER_SMOOTHED_COSINE`, more than the first layer's input. It only smooths if HFC/LFC falls to
    `SMOOTHED_FACTOR` of its value or less. It does so from the first layer on after which this
    stays true. What drives it is the step that lowers log(HFC/LFC) most, summed over layers.
    """
    stacks = split_stacks(layers)
    if len(stacks) == 1:
        return _judge_stack(next(iter(stacks.values())), "The model")
    return " ".join(_judge_stack(stack, f"The {name}") for name, stack in stacks.items())


def split_stacks(layers: list[LayerDiagnosis]) -> dict[str, list[LayerDiagnosis]]:
    """Return the layers of encoder and decoder apart, if a model has both, else all as one."""
    decoder = [layer for layer in layers if "decoder" in layer.name.split(".")]
    encoder = [layer for layer in layers if "encoder" in layer.name.split(".")]
    if decoder and encoder and len(decoder) + len(encoder) == len(layers):
        return {"encoder": encoder, "decoder": decoder}
    return {"model": layers}


class Smoothing(NamedTuple):
    """The effect of layers on their tokens, and the depths at which these are smooth."""

    kind: Literal["over-smooths", "smooths", "none"]
    is_smooth: list[bool]


def classify_smoothing(cosines: Sequence[float], ratios: Sequence[float]) -> Smoothing:
    """Classify layers by token cosine and HFC/LFC at their first input and after each of them.

    >>> classify_smoothing([0.1, 0.5, 0.95], [0.9, 0.5, 0.05])
    Smoothing(kind='over-smooths', is_smooth=[False, False, True])
    """
    limit = SMOOTHED_FACTOR * ratios[0]
    if cosines[-1] >= max(OVER_SMOOTHED_COSINE, cosines[0]):
        return Smoothing("over-smooths", [cosine >= OVER_SMOOTHED_COSINE for cosine in cosines])
    if limit > 0 and ratios[-1] <= limit:
        return Smoothing("smooths", [ratio <= limit for ratio in ratios])
    return Smoothing("none", [False] * len(ratios))


def find_onset(is_smooth: Sequence[bool]) -> int | None:
    """Return the first place from which on all are smooth, None if the last one is not.

    >>> find_onset([False, True, False, True, True]), find_onset([True, False])
    (3, None)
    """
    first = max((i + 1 for i, smooth in enumerate(is_smooth) if not smooth), default=0)
    return first if first < len(is_smooth) else None


def sum_changes(layers: list[LayerDiagnosis]) -> dict[str, float]:
    """Return the change of log(HFC/LFC) by attention, residual sum, MLP and norms, over layers.

    The change to the residual sum belongs to the attention if its branch is on the same side of
    the input as the sum, and to the residual sum itself if the terms cancel or add by their signs.
    """
    total = dict.fromkeys(_NAMES, 0.0)
    for layer in layers:
        branch = layer.change("input", "attention")
        summed = layer.change("input", "residual")
        if summed is not None:
            is_alike = branch is not None and branch * summed > 0
            total["attention" if is_alike else "residual"] += summed
        elif "residual" not in layer.steps and branch is not None:
            total["attention"] += branch
        last = "residual" if "residual" in layer.steps else "attention"
        if "norm" in layer.steps:
            total["norm"] += layer.change(last, "norm") or 0.0
            total["norm"] += layer.change("mlp_residual", "mlp") or 0.0
            last = "norm"
        end = "mlp_residual" if "mlp_residual" in layer.steps else "mlp"
        total["mlp"] += layer.change(last, end) or 0.0
    return total


def _judge_stack(layers: list[LayerDiagnosis], subject: str) -> str:
    outputs = [_find_output(layer) for layer in layers]
    start = layers[0].steps.get("input")
    tokens = [x for x in outputs if x is not None]
    if start is None or len(tokens) < len(outputs):
        return f"{subject} cannot be judged: the tokens of its blocks were not found."
    last, depth = tokens[-1], [start, *tokens]
    found = classify_smoothing([x.token_cosine for x in depth], [x.hfc_lfc for x in depth])
    cosines = f"token cosine {start.token_cosine:.2f} to {last.token_cosine:.2f}"
    ratios = f"HFC/LFC {start.hfc_lfc:.3g} to {last.hfc_lfc:.3g}"
    answer, smoothed = {
        "over-smooths": ("over-smooths", "over-smoothed"),
        "smooths": ("smooths its tokens, and does not over-smooth them", "smoothed"),
        "none": ("does not over-smooth", "smoothed"),
    }[found.kind]
    onset = find_onset(found.is_smooth[1:])
    when = "There is no layer from which on its tokens stay smoothed."
    if onset is not None:
        when = f"Its tokens are {smoothed} from layer {layers[onset].index} on."
    return f"{subject} {answer} ({cosines}, {ratios}). {when} {_name_driver(layers)}"


def _find_output(layer: LayerDiagnosis) -> TokenMeasures | None:
    return next(reversed(layer.steps.values())) if layer.steps else None


def _name_driver(layers: list[LayerDiagnosis]) -> str:
    changes = sum_changes(layers)
    lowest = min(changes, key=lambda name: changes[name])
    listed = ", ".join(f"{_NAMES[name]} {value:+.2f}" for name, value in changes.items() if value)
    if changes[lowest] > -SMALL_CHANGE:
        return f"No step of its blocks smooths them (change of log HFC/LFC: {listed or 'none'})."
    return f"What smooths most is {_NAMES[lowest]} (change of log HFC/LFC: {listed})."
