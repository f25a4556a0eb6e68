"""The update X + A X W follows its dominating eigenvalue."""

import pytest
import torch
from attention_core import spectral

from benchmarks.evidence.signs import RANGES, form_map, iterate_update, judge_iteration

SIZES = {"dim": 3, "num_tokens": 5}


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_sign_decides(recomputed):
    for spectrum, outcome in (("positive", "smooths"), ("negative", "sharpens")):
        rows = iterate_update(spectrum, recomputed, seed=1, depths=(0, 500), **SIZES)
        assert rows[0]["predicted"] == judge_iteration(rows) == outcome
        assert rows[0]["map"] == ("recomputed" if recomputed else "fixed")


def test_the_first_step_equals_its_equation():
    low, high = RANGES["mixed"]
    generator = torch.Generator().manual_seed(4)
    uniform = torch.rand(3, generator=generator, dtype=torch.float64)
    Q, x, queries, keys = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 3), (5, 3), (3, 3), (3, 3))
    )
    Q = torch.linalg.qr(Q).Q
    W = (Q @ torch.diag(low + (high - low) * uniform) @ torch.linalg.inv(Q)).mT
    expected = x + form_map(x, queries / 3**0.5, keys / 3**0.5) @ x @ W
    rows = iterate_update("mixed", False, seed=4, depths=(0, 1), **SIZES)
    measured = [row["hfc_lfc"] for row in rows]
    assert measured == pytest.approx([spectral.hfc_lfc(y).item() for y in (x, expected)])
