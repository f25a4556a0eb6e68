"""The verdict of a diagnosis: does a model over-smooth, from which layer on, and what drives it.

The thresholds are constants of this file. Tokens with a ratio r = HFC/LFC have a mean cosine of
about 1 / (1 + r^2), so that a cosine of 0.9 is a ratio of about 1/3. All values leave out outlier
channels and tokens.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

import torch

from attention_core.diagnosis.report import LayerDiagnosis, average_finite, number_layers

OVER_SMOOTHED_COSINE = 0.9  # absolute token cosine after the last layer, of over-smoothed tokens
SMOOTHED_FACTOR = 0.5  # HFC/LFC at the last output over that at the first input
SMALL_RISE = 0.01  # what counts as a rise of the cosine where the input has 0.9
SMALL_CHANGE = 0.05  # a sum of changes of log(HFC/LFC) below which no driver is named
COLLAPSED_ENTROPY = 0.1  # relative entropy of a layer's maps, below which attention has collapsed
ALIKE_MAPS = 0.9  # cosine of the maps of two layers that hardly differ
_NAMES = {"skip": "the skip connections", "norm": "the norms"}
_NAMES |= {name: f"the {name}" for name in ("MLP", "convolution")}
_ANSWERS = {
    "over-smooths": "over-smooths",
    "smooths": "smooths its tokens, and does not over-smooth them",
    "none": "does not over-smooth",
    "borderline": "is borderline",
}
_NAMED_STACKS = ("model", "encoder", "decoder")
# 97.5 % quantiles of Student's distribution for 1, 2, ... degrees of freedom
_QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
LIMITS = {"token_cosine": OVER_SMOOTHED_COSINE, "hfc_lfc": SMOOTHED_FACTOR}
Kind = Literal["over-smooths", "smooths", "none", "borderline"]


class Interval(NamedTuple):
    """A mean over samples and its 95 % interval, which is the mean itself for one sample."""

    mean: float
    low: float
    high: float

    def holds(self, limit: float) -> bool:
        """Return True if a limit lies inside the interval."""
        return self.low < limit <= self.high


def estimate_mean(values: Sequence[float]) -> Interval:
    """Return the mean of values with its 95 % interval by Student's distribution.

    >>> estimate_mean([0.5])
    Interval(mean=0.5, low=0.5, high=0.5)
    >>> [round(x, 2) for x in estimate_mean([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    mean, freedom = fmean(values), len(values) - 1
    if freedom == 0:
        return Interval(mean, mean, mean)
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else 1.96 + 2.65 / freedom
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


class Depth(NamedTuple):
    """Tokens along a stack: at its first input, then after each layer.

    `factors` are those of HFC/LFC since the input. What a model does between two stages of other
    sizes is left out of them. `cosine` and `factor` are those after the last layer.
    """

    cosines: list[float]
    factors: list[float]
    cosine: Interval
    factor: Interval


def follow_tokens(layers: list[LayerDiagnosis]) -> Depth | None:
    """Return the tokens along the layers of a stack, None where a layer does not show them."""
    counts = {len(x.samples["hfc_lfc"]) for layer in layers for x in layer.steps.values()}
    if len(counts) > 1 or any("input" not in x.steps or len(x.steps) < 2 for x in layers):
        return None
    first, ends = layers[0].steps["input"], [layer.steps[[*layer.steps][-1]] for layer in layers]
    total = torch.zeros(len(first.samples["hfc_lfc"]), dtype=torch.float64)
    factors, segment = [1.0], None
    for layer, end in zip(layers, ends, strict=True):
        if layer.segment != segment:
            start, segment, passed = layer.steps["input"].read_logs(), layer.segment, total
        total = passed + end.read_logs() - start
        finite = total[total.isfinite()]
        factors.append(finite.mean().exp().item() if len(finite) else math.nan)
    factor = Interval(*map(math.exp, estimate_mean(finite.tolist() or [0.0])))
    cosines = [tokens.trimmed_token_cosine for tokens in (first, *ends)]
    values = ends[-1].samples["token_cosine"]
    if cosines[0] >= OVER_SMOOTHED_COSINE:  # the rise of each sample counts
        pairs = zip(first.samples["token_cosine"], values, strict=True)
        values = [cosines[0] + last - own for own, last in pairs]
    cosine = Interval(*(min(1.0, max(0.0, value)) for value in estimate_mean(values)))
    return Depth(cosines, factors, cosine, factor)


def classify_smoothing(depth: Depth) -> Kind:
    """Return what a stack does to its tokens: borderline where an interval holds a limit."""
    limit = _limit_cosine(depth)
    if depth.cosine.low >= limit:
        return "over-smooths"
    if depth.cosine.holds(limit):
        return "borderline"
    if depth.factor.high <= SMOOTHED_FACTOR:
        return "smooths"
    return "borderline" if depth.factor.holds(SMOOTHED_FACTOR) else "none"


def _limit_cosine(depth: Depth) -> float:
    """Return the cosine of over-smoothed tokens, a little more than that of an input that is."""
    first = depth.cosines[0]
    rise = min(SMALL_RISE, max((1 - first) / 2, 1e-5))  # more than rounding errors
    return first + rise if first >= OVER_SMOOTHED_COSINE else OVER_SMOOTHED_COSINE


def write_verdict(layers: list[LayerDiagnosis], reason: str = "") -> str:
    """Return three sentences on each stack of layers, or the `reason` for which there is none."""
    if reason:
        return f"There is no verdict: {reason}."
    stacks = split_stacks(layers)
    subjects = [
        f"The {name}" if name in _NAMED_STACKS else f"{name.title()} (from {stack[0].name} on)"
        for name, stack in stacks.items()
    ]
    return " ".join(map(_judge_stack, stacks.values(), subjects))


def split_stacks(layers: list[LayerDiagnosis]) -> dict[str, list[LayerDiagnosis]]:
    """Return the layers of each stack, such as encoder and decoder, by its name."""
    names = dict.fromkeys(layer.stack for layer in layers)
    return {name: [layer for layer in layers if layer.stack == name] for name in names}


def _judge_stack(layers: list[LayerDiagnosis], subject: str) -> str:
    depth = follow_tokens(layers)
    if depth is None:
        return f"{subject} cannot be judged: the tokens of its layers were not found."
    kind = classify_smoothing(depth)
    cosines = f"token cosine {depth.cosines[0]:.2f} to {_format_interval(depth.cosine)}"
    ratios = f"HFC/LFC times {_format_interval(depth.factor)}"
    onset = _name_onset(layers, depth, kind)
    if kind == "borderline":
        limit = f"token cosine holds the limit, {_limit_cosine(depth):.4g}"
        if not depth.cosine.holds(_limit_cosine(depth)):
            limit = f"factor of HFC/LFC holds the limit, {SMOOTHED_FACTOR}"
        onset = f"The interval of its {limit}: more samples may decide."
    driver = _name_driver(layers)
    return f"{subject} {_ANSWERS[kind]} ({cosines}, {ratios}). {onset} {driver}".rstrip()


def _format_interval(interval: Interval) -> str:
    mean, low, high = (f"{value:.2f}" if value >= 0.1 else f"{value:.2g}" for value in interval)
    return mean if low == high else f"{mean} [{low}, {high}]"


def _name_onset(layers: list[LayerDiagnosis], depth: Depth, kind: Kind) -> str:
    """Name the first layer from which on the tokens of all are smooth."""
    is_smooth = [cosine >= _limit_cosine(depth) for cosine in depth.cosines[1:]]
    if kind == "smooths":
        is_smooth = [factor <= SMOOTHED_FACTOR for factor in depth.factors[1:]]
    onset = max((i + 1 for i, smooth in enumerate(is_smooth) if not smooth), default=0)
    if kind == "none" or onset == len(layers):
        return "There is no layer from which on its tokens stay smoothed."
    smoothed = "over-smoothed" if kind == "over-smooths" else "smoothed"
    return f"Its tokens are {smoothed} from layer {layers[onset].index} on."


def _name_driver(layers: list[LayerDiagnosis]) -> str:
    kinds = dict.fromkeys(kind for layer in layers for kind in layer.changes)
    changes = {kind: sum(layer.changes.get(kind, 0.0) for layer in layers) for kind in kinds}
    if not changes:
        return ""
    names = {kind: _NAMES.get(kind, kind) for kind in changes}
    if "cross-attention" in changes:
        names["attention"] = "self-attention"
    listed = ", ".join(f"{names[kind]} {value:+.2f}" for kind, value in changes.items() if value)
    lowest = min(changes, key=lambda kind: changes[kind])
    if changes[lowest] > -SMALL_CHANGE:
        return f"No step of its layers smooths them (change of log HFC/LFC: {listed or 'none'})."
    return f"What smooths most is {names[lowest]} (change of log HFC/LFC: {listed})."


def list_findings(layers: list[LayerDiagnosis]) -> list[str]:
    """Return a sentence each on outliers, the entropy of attention and maps that are alike."""
    found, named = [], [*zip(number_layers(layers).values(), layers, strict=True)]
    for stack in split_stacks(layers):
        held = [(name, x.output) for name, x in named if x.stack == stack and x.output is not None]
        held = [(name, x) for name, x in held if x.outlier_channels or x.outlier_tokens]
        for name, x in held[-1:]:
            shown = ", ".join(map(str, x.outlier_channels[:4]))
            more = " and more" if len(x.outlier_channels) > 4 else ""
            share = f"{x.largest_channel_share:.0%}"
            times = f"{x.largest_token_norm:.0f} times the median"
            channels = f"channels ({shown}{more}; the largest has {share} of the energy)"
            tokens = f"tokens ({x.outlier_tokens:.1f} a sample; the largest norm is {times})"
            outliers = [channels] * bool(x.outlier_channels) + [tokens] * bool(x.outlier_tokens)
            found.append(
                f"Layer {name} has outlier {' and '.join(outliers)}, which the verdict leaves out: "
                f"with them the token cosine is {x.token_cosine:.2f} and HFC/LFC {x.hfc_lfc:.3g}, "
                f"without {x.trimmed_token_cosine:.2f} and {x.trimmed_hfc_lfc:.3g}."
            )
    means = [(average_finite(layer.relative_entropy), name) for name, layer in named]
    if known := [(mean, name) for mean, name in means if mean is not None]:
        lowest, name = min(known)
        collapsed = "has collapsed" if lowest < COLLAPSED_ENTROPY else "has not collapsed"
        found.append(
            f"Attention entropy {collapsed}: the lowest of a layer is {lowest:.2f} of uniform "
            f"attention, in layer {name}."
        )
    if cosines := [x.map_similarity for x in layers if x.map_similarity is not None]:
        mean = sum(cosines) / len(cosines)
        answer = "are alike" if mean >= ALIKE_MAPS else "differ"
        found.append(f"The maps of successive layers {answer}: their mean cosine is {mean:.2f}.")
    return found
