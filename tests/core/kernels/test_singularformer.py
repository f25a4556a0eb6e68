"""Singularformer against its equations, summary by summary, and its penalty by hand."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attention_core import SelfAttention
from attention_core.kernels import Singularformer, singularformer
from attention_core.kernels.common import connect_layers
from torch.testing import assert_close

from tests.core.cases import draw_weights
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, TIGHT, B, D, H, N

RANK, GAMMA = 5, 0.3


def singular(**options):
    return draw_weights(Singularformer(DIM, H, rank=RANK, gamma=GAMMA, **options))


def off(M):
    return [M[i, j] for i in range(RANK) for j in range(RANK) if i != j]


def literal(kernel, q, k, x, v, valid):
    """The values that come out, and gamma times the mean of the three terms."""
    rows, terms = {}, 0
    for i in range(B):
        P = [(kernel.project.weight @ x[i, t] + kernel.project.bias).exp() for t in range(N)]
        total = sum(P[t] for t in range(N) if valid[i][t])
        a = torch.stack([P[t] / total * valid[i][t] for t in range(N)])  # (N, r)
        uniform = torch.full((RANK,), 1 / RANK, dtype=torch.float64)
        pads = uniform if kernel.padding == "published" else torch.zeros(RANK).double()
        b = torch.stack([P[t] / P[t].sum() if valid[i][t] else pads for t in range(N)])
        for M in (a, b):
            terms = terms + sum(z**2 for z in off(M.T @ M)) / RANK**2 / B
        for h in range(H):
            pooled_q, pooled_k = (
                [sum(a[t, s] * z[i, h, t] for t in range(N)) for s in range(RANK)] for z in (q, k)
            )
            S = torch.stack([torch.stack([(u @ w) / D**0.5 for w in pooled_k]) for u in pooled_q])
            S = torch.stack([row.exp() / row.exp().sum() for row in S])
            rows[i, h] = b @ S @ a.T @ v[i, h]
            terms = terms + sum(off(S)) / RANK**2 / (B * H)
    y = torch.stack([rows[i, h] for i in range(B) for h in range(H)])
    return y.view(B, H, N, D), kernel.gamma * terms


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padding", ["excluded", "published"])
def test_is_its_equation(padding, mask):
    kernel, (q, k, x, v) = singular(padding=padding), cases.operands()
    mask = MASKS[mask]()
    valid = cases.list_valid(mask)
    A = kernel(q, k, x, mask)
    mine, yours = (A @ v, kernel.penalty(A)), literal(kernel, q, k, x, v, valid)
    assert_close(mine, yours, **TIGHT)
    cases.assert_same_gradients([q, k, x, v, *kernel.parameters()], mine, yours)


def test_it_pools_what_it_might_project_later():
    """The released order, a^T x before the projections, is the same: columns of a sum to 1."""
    layer = SelfAttention(DIM, H, kernel=lambda dim, heads: singular()).double()
    x = cases.operands()[2]
    P = layer.kernel.project(x)
    pooled = layer.qkv(P.softmax(-2).mT @ x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
    z = torch.nn.functional.scaled_dot_product_attention(*pooled).transpose(1, 2).flatten(2)
    assert_close(layer(x), P.softmax(-1) @ layer.proj(z), **TIGHT)


def test_scores_of_the_layers_before_add_up_if_asked():
    q, k, x, _ = cases.operands()
    layers = [singular(add_scores=True) for _ in range(3)]
    alone = [layer(q, k, x).core.log() for layer in layers]  # log softmax: scores up to a constant
    connect_layers(layers)
    connected = copy.deepcopy(layers)
    for _ in range(2):  # passes
        for depth, layer in enumerate(connected):
            assert_close(layer(q, k, x).core, sum(alone[: depth + 1]).softmax(-1), **TIGHT)
    assert not any(vars(singularformer._CALL).values())  # no graph outlives the pass
    connected[0](q, k, x)
    with ThreadPoolExecutor() as pool, pytest.raises(ValueError, match="with activation"):
        pool.submit(connected[1], q, k, x).result()  # another thread has none
    connected[1](q, k, x)
    with pytest.raises(ValueError, match="with activation checkpointing"):  # runs it alone
        connected[1](q, k, x)
