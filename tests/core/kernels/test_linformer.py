"""Linformer against its mixtures, token by token."""

import pytest
import torch
from attention_core.kernels import Linformer
from attention_core.kernels.common import connect_layers
from torch.testing import assert_close

from tests.core.cases import draw_weights
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H, N

LENGTH, RANK = 13, 5
OPTIONS = [{"share_kv": kv, "per_head": heads} for kv in (True, False) for heads in (True, False)]
OPTIONS += [{"length": n, "rank": rank} for n, rank in ((N, N + 1), (N, 2), (40, 3))]


def make(length=LENGTH, rank=RANK, **options):
    """A Linformer in float64 whose mixtures are of the size of their tokens."""
    return draw_weights(Linformer(DIM, H, length, rank, **options))


def literal(kernel):
    def map_of(q, k, valid, h):
        """One head of one sample, mixture by mixture."""
        E = kernel.E[h if len(kernel.E) > 1 else 0]
        F = E if kernel.F is None else kernel.F[h if len(kernel.F) > 1 else 0]
        tokens = [j for j in range(len(k)) if valid[j]]
        mixtures = [sum(E[r, j] * k[j] for j in tokens) for r in range(len(E))]
        A = torch.zeros(len(q), len(k)).double()
        for i in tokens:
            weights = [(q[i] @ mixture / q.shape[-1] ** 0.5).exp() for mixture in mixtures]
            for j in tokens:
                A[i, j] = sum(w * F[r, j] for r, w in enumerate(weights)) / sum(weights)
        return A

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_is_its_equation(options, mask):
    kernel = make(**options)
    cases.assert_is(kernel, literal(kernel), MASKS[mask]())


def test_starts_as_published():
    normal = Linformer(DIM, H, 50, 40).E
    assert normal.shape == (H, 40, 50)
    assert_close(normal.std(), torch.tensor(0.02), rtol=0.05, atol=0)
    uniform = Linformer(DIM, H, 50, 40, share_kv=False, per_head=False, init="uniform")
    for weight in (uniform.E, uniform.F):
        assert weight.shape == (1, 40, 50)
        assert_close(weight.abs().max(), torch.tensor(40**-0.5), rtol=0.05, atol=0)


@pytest.mark.parametrize("share_kv", [True, False])
def test_layers_share_their_mixtures_if_asked(share_kv):
    shared = [make(share_layers=True, share_kv=share_kv) for _ in range(3)]
    connect_layers(shared)
    assert len({weight for kernel in shared for weight in kernel.parameters()}) == 2 - share_kv
    apart = [make(share_kv=share_kv) for _ in range(3)]
    connect_layers(apart)
    assert len({kernel.E for kernel in apart}) == 3
