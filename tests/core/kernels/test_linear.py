"""Linear attention against its sums, and the unnormalised map of the LRA code."""

import pytest
import torch
from attention_core.kernels import LinearAttention
from torch.testing import assert_close

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H

EPS = 1e-6


def phi(u):
    return torch.stack([c + 1 if c > 0 else c.exp() for c in u])


def similarity(q, k, valid):
    """phi(q_i) . phi(k_j) of the real tokens, pair by pair."""
    rows, columns = [phi(u) for u in q], [phi(u) for u in k]
    pairs = range(len(q))
    return [[rows[i] @ columns[j] * valid[i] * valid[j] for j in pairs] for i in pairs]


def normalised(q, k, valid, h):
    return torch.stack([torch.stack(row) / (sum(row) + EPS) for row in similarity(q, k, valid)])


def unnormalised(q, k, valid, h):
    return torch.stack([torch.stack(row) / len(k) ** 0.5 for row in similarity(q, k, valid)])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("literal", [normalised, unnormalised])
def test_is_its_equation(literal, mask):
    kernel = LinearAttention(DIM, H, normalise=literal is normalised, eps=EPS)
    cases.assert_is(kernel, literal, MASKS[mask]())


def test_half_precision_takes_means_at_any_length():
    q, k, v = torch.randn(3, 1, 1, 20_000, 4)
    exact = LinearAttention(4, 1)(q, k, v[0]) @ (v + 9)
    A = LinearAttention(4, 1)(q.half(), k.half(), v[0])
    assert_close((A @ (v + 9).half()).float(), exact, rtol=2e-3, atol=0)
