"""A summary of a trained model in three lines: smoothness by depth, and what moved."""

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

from experiment_kit.diagnostics.coefficients import list_trained

# a cosine from which on tokens count as alike
ALIKE = 0.9


def summarize_smoothing(
    measures: Mapping[str, Any], first: Mapping[str, Any] | None = None
) -> list[str]:
    """Return three lines: does a model over-smooth, from which block on, what moved since `first`.

    >>> depth = [{"token_cosine": c, "hfc_lfc": 1 - c} for c in (0.1, 0.5, 0.95)]
    >>> for line in summarize_smoothing({"depth": depth, "coefficients": {}, "attention": []}):
    ...     print(line)
    smoothing: token cosine 0.10 at the embedding, 0.95 after block 2; HFC/LFC 0.90, 0.05
    over-smooths: tokens are alike (cosine over 0.9) from block 2 on
    coefficients: none is trained
    """
    depth = [layer for layer in measures["depth"] if math.isfinite(layer["token_cosine"])]
    if len(depth) < 2:
        return []
    cosines = [layer["token_cosine"] for layer in depth]
    start, end = depth[0], depth[-1]
    lines = [
        f"smoothing: token cosine {cosines[0]:.2f} at the embedding, {cosines[-1]:.2f} after block "
        f"{len(depth) - 1}; HFC/LFC {start['hfc_lfc']:.2f}, {end['hfc_lfc']:.2f}"
    ]
    alike = next((i for i in range(len(depth)) if min(cosines[i:]) > ALIKE), None)
    if alike is None:
        lines.append(f"does not over-smooth: tokens stay apart (cosine up to {max(cosines):.2f})")
    else:
        lines.append(f"over-smooths: tokens are alike (cosine over {ALIKE}) from block {alike} on")
    return [*lines, f"coefficients: {_describe_moves(measures, first or {})}"]


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
