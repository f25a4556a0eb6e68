"""The summary of a trained model."""

import math

import pytest
from experiment_kit.diagnostics.summary import summarize_smoothing


def summarize(cosines, ratios, before=None, **coefficients):
    depth = [{"token_cosine": c, "hfc_lfc": r} for c, r in zip(cosines, ratios, strict=True)]
    measures = {"depth": depth, "coefficients": coefficients, "frozen": [], "attention": []}
    return summarize_smoothing(measures, before and {"coefficients": before})


@pytest.mark.parametrize(("cosines", "ratios", "answer", "when"), [
    ((0.2, 0.95, 0.5, 0.92, 0.93), (2, 1, 1, 1, 1), "over-smooths", "from block 3 on"),
    ((0.95, 0.96), (0.3, 0.3), "over-smooths", "from block 0 on"),
    ((0.97, 0.95), (0.3, 0.3), "does not over-smooth", "there is no block"),
    ((0.2, 0.3, 0.6), (2, 1.5, 0.9), "smooths, and does not over-smooth", "from block 2 on"),
    ((0.2, 0.95, 0.3), (2, 0.2, 1.9), "does not over-smooth", "there is no block"),
])  # fmt: skip
def test_the_verdict_is_that_of_the_last_block(cosines, ratios, answer, when) -> None:
    first, second, third = summarize(cosines, ratios)
    assert first.startswith(f"{answer}: token cosine {cosines[0]:.2f} at the embedding")
    assert when in second
    assert third == "coefficients: none is trained"


def test_the_layer_that_moved_most_is_named() -> None:
    before = {"0.filter.wK": [0.0, 0.0], "1.filter.wK": [0.0, 0.0]}
    now = {"0.filter.wK": [0.1, 0.1], "1.filter.wK": [-0.5, -0.3]}
    assert summarize((0.1, 0.2), (1, 1), before, **now)[-1] == (
        "coefficients: wK is -0.4 to 0.1 by layer, moved most in layer 1 (-0.4)"
    )


def test_tokens_that_diverged_have_no_summary() -> None:
    assert summarize((0.1, math.nan), (1, 1)) == []
