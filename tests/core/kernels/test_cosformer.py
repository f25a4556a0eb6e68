"""cosFormer against its pairs of positions."""

import math

import pytest
import torch
from attention_core.kernels import Cosformer

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H


def literal(horizon, floor):
    def map_of(q, k, valid, h):
        """One head of one sample, pair by pair, positions from 1."""
        last = max(i + 1 for i in range(len(k)) if valid[i])
        M = last if horizon == "real" else len(k)
        rows = []
        for i in range(len(q)):
            row = []
            for j in range(len(k)):
                product = q[i].clamp(min=0) @ k[j].clamp(min=0)
                row.append(product * math.cos(math.pi / 2 * (i - j) / M) * valid[i] * valid[j])
            rows.append(torch.stack(row) / max(sum(row), torch.tensor(floor).double()))
        return torch.stack(rows)

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("floor", [1e-6, 9.0])  # the second divides small rows
@pytest.mark.parametrize("horizon", ["real", "padded"])
def test_is_its_equation(horizon, floor, mask):
    cases.assert_is(Cosformer(DIM, H, horizon, eps=floor), literal(horizon, floor), MASKS[mask]())
