"""Primalformer against its equations, token by token, and its loss by hand."""

import pytest
import torch
from attention_core.kernels import Primalformer
from attention_core.kernels.primalformer import evenly_spaced_indices
from torch.testing import assert_close

from tests.core.cases import draw_weights
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, TIGHT, B, D, H, N

RANK, ETA = 3, 0.7


def primal(**options):
    return draw_weights(Primalformer(DIM, H, length=N, rank=RANK, multiplier=2, eta=ETA, **options))


def literal(kernel, q, k, x, valid, loss, trace):
    """Outputs (B, H, N, D) and eta J^2; tokens that `valid` leaves out are nowhere."""
    p, y, J = kernel.points, {}, []
    for i in range(B):
        real, energy, agreement = [t for t in range(N) if valid[i][t]], 0, 0
        chosen = [real[j * (len(real) - 1) // (p - 1)] for j in range(p)]
        for h in range(H):
            W_e, W_r = kernel.W_e[h], kernel.W_r[h]
            X = torch.stack([x[i, t, h * D : (h + 1) * D] for t in chosen])  # (p, D)
            for t in range(N):
                e = torch.stack([(q[i, h, t] / q[i, h, t].norm()) @ X.T @ w for w in W_e.T])
                r = torch.stack([(k[i, h, t] / k[i, h, t].norm()) @ X.T @ w for w in W_r.T])
                out = kernel.combine.weight @ torch.cat([e, r]) + kernel.combine.bias
                y[i, h, t] = out * valid[i][t]
                squares = ((kernel.Lambda[h] * e) ** 2).sum() + ((kernel.Lambda[h] * r) ** 2).sum()
                energy = energy + squares * valid[i][t] / 2 / (len(real) * H)
            E, R = (W_e, W_r) if trace == "raw" else (X.T @ W_e, X.T @ W_r)
            agreement = agreement + torch.trace(E.T @ R) / H
        J.append(energy - agreement)
    squared = sum(j**2 for j in J) / B if loss == "sample" else (sum(J) / B) ** 2
    y = torch.stack([y[i, h, t] for i in range(B) for h in range(H) for t in range(N)])
    return y.view(B, H, N, D), ETA * squared


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padding", ["excluded", "published"])
@pytest.mark.parametrize("trace", ["raw", "projected"])
@pytest.mark.parametrize("loss", ["sample", "batch"])
def test_is_its_equation(loss, trace, padding, mask):
    (q, k, x, v), mask = cases.operands(), MASKS[mask]()
    kernel = primal(loss=loss, trace=trace, padding=padding)
    valid = cases.list_valid(mask if padding == "excluded" else None)
    A = kernel(q, k, x, mask)
    mine, yours = (A @ v, kernel.penalty(A)), literal(kernel, q, k, x, valid, loss, trace)
    assert_close(mine, yours, **TIGHT)
    cases.assert_same_gradients([q, k, x, *kernel.parameters()], mine, yours)


def test_zeroed_padding_is_ignored_but_in_the_output():
    """As in the code for LRA: a head's output times the mask, its sampling and its loss without."""
    (q, k, x, v), mask = cases.operands(), cases.gaps()
    zeroed, ignored = primal(padding="zeroed"), primal(padding="published")
    zeroed.load_state_dict(ignored.state_dict())
    A, expected = zeroed(q, k, x, mask), ignored(q, k, x)
    assert_close(A @ v, (expected @ v) * mask[:, None, :, None])
    assert_close(zeroed.penalty(A), ignored.penalty(expected))


@pytest.mark.parametrize(("tokens", "points"), [(7, 6), (29, 10), (1751, 300), (5, 1), (3, 8)])
def test_points_are_where_torch_puts_them(tokens, points):
    """The published indices, up to the rounding of a float that should be whole."""
    ours = evenly_spaced_indices(torch.ones(1, tokens, dtype=torch.bool), points)[0]
    exact = torch.linspace(0, tokens - 1, points, dtype=torch.float64)
    assert (exact - ours).min() > -1e-9
    assert (exact - ours).max() < 1
    assert ours[-1] == (tokens - 1 if points > 1 else 0)


def test_weights_start_orthonormal():
    W = Primalformer(DIM, H, length=13, rank=RANK, multiplier=2).W_e
    assert_close(W.mT @ W, torch.eye(RANK).expand(H, -1, -1))
    W = Primalformer(DIM, H, length=13, rank=RANK, multiplier=2, init="released").W_e.flatten(1)
    assert_close(W @ W.T, torch.eye(H))
