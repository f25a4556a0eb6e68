"""A summary of a trained model in three lines, by the thresholds of a diagnosis."""

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

from attention_core.diagnosis.verdict import (
    OVER_SMOOTHED_COSINE,
    SMOOTHED_FACTOR,
    Depth,
    Interval,
    classify_smoothing,
    find_onset,
)

from experiment_kit.diagnostics.coefficients import list_trained


def summarize_smoothing(
    measures: Mapping[str, Any], first: Mapping[str, Any] | None = None
) -> list[str]:
    """Return three lines: does a model over-smooth, from which block on, what moved since `first`.

    There are none for a model whose tokens diverged or were not found.

    >>> depth = [{"token_cosine": c, "hfc_lfc": 1 - c} for c in (0.1, 0.5, 0.95)]
    >>> for line in summarize_smoothing({"depth": depth, "coefficients": {}, "attention": []}):
    ...     print(line)
    over-smooths: token cosine 0.10 at the embedding, 0.95 after block 2; HFC/LFC 0.9, 0.05
    tokens are alike (cosine of 0.9 or more) from block 2 on
    coefficients: none is trained
    """
    depth = measures["depth"]
    if len(depth) < 2 or not all(map(math.isfinite, (v for x in depth for v in x.values()))):
        return []
    cosines, ratios = ([layer[name] for layer in depth] for name in ("token_cosine", "hfc_lfc"))
    numbers = (
        f"token cosine {cosines[0]:.2f} at the embedding, {cosines[-1]:.2f} after block "
        f"{len(depth) - 1}; HFC/LFC {ratios[0]:.3g}, {ratios[-1]:.3g}"
    )
    factors = [ratio / ratios[0] if ratios[0] else math.inf for ratio in ratios]
    # means of a few samples: no interval
    cosine, factor = (Interval(value, value, value) for value in (cosines[-1], factors[-1]))
    kind = classify_smoothing(Depth(cosines, factors, cosine, factor, num_samples=1))
    answer, what = {
        "over-smooths": ("over-smooths", f"alike (cosine of {OVER_SMOOTHED_COSINE} or more)"),
        "smooths": ("smooths, and does not over-smooth", "smoothed (half of HFC/LFC or less)"),
        "none": ("does not over-smooth", ""),
    }[kind]
    is_smooth = [cosine >= OVER_SMOOTHED_COSINE for cosine in cosines]
    if kind == "smooths":
        is_smooth = [factor <= SMOOTHED_FACTOR for factor in factors]
    onset = None if kind == "none" else find_onset(is_smooth)
    when = "there is no block from which on tokens stay smoothed"
    if onset is not None:
        when = f"tokens are {what} from block {onset} on"
    return [f"{answer}: {numbers}", when, f"coefficients: {_describe_moves(measures, first or {})}"]


def _describe_moves(measures: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    trained = list(list_trained(measures))
    if not trained:
        return "none is trained"
    before = {(name, i): mean(values) for name, i, values in list_trained({**measures, **first})}
    moved = []
    for kind in dict.fromkeys(name for name, _, _ in trained):
        means = {i: mean(values) for name, i, values in trained if name == kind}
        text = f"{kind} is {min(means.values()):.3g} to {max(means.values()):.3g} by layer"
        moves = {i: value - before.get((kind, i), value) for i, value in means.items()}
        largest = max(moves, key=lambda i: abs(moves[i]))
        moved.append(f"{text}, moved most in layer {largest} ({moves[largest]:+.3g})")
    return "; ".join(moved)
