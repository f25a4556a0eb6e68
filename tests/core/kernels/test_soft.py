"""SOFT against its equations, token by token."""

import math

import pytest
import torch
from attention_core.kernels import SOFT
from attention_core.kernels.soft import RIDGE

from tests.core.cases import draw_weights
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, D, H, N


def landmark(kernel, window):
    """One window (ratio, d), through the convolution, the norm and the GELU."""
    taps = kernel.pool.weight.view(D, len(window), D)
    u = sum(taps[:, t] @ token for t, token in enumerate(window))
    u = (u - u.mean()) / ((u - u.mean()).square().mean() + kernel.norm.eps).sqrt()
    u = u * kernel.norm.weight + kernel.norm.bias
    return u * (1 + torch.erf(u / math.sqrt(2))) / 2


def near(x, y):
    return torch.exp(-((x - y) ** 2).sum() / 2)


def literal(kernel):
    def map_of(q, k, valid, h):
        n, zero = len(q), torch.zeros(D).double()
        tokens = [q[t] / D**0.25 if t < n and valid[t] else zero for t in range(n + kernel.ratio)]
        starts = [t for t in range(0, n, kernel.ratio) if any(valid[t : t + kernel.ratio])]
        y = [landmark(kernel, tokens[t : t + kernel.ratio]) for t in starts]
        pairs = zip(tokens[:n], valid, strict=True)
        K1 = torch.stack([torch.stack([near(x, b) * real for b in y]) for x, real in pairs])
        S = torch.stack([torch.stack([near(a, b) for b in y]) for a in y])
        A = K1 @ torch.linalg.inv(S + RIDGE * torch.eye(len(y)).double()) @ K1.T
        return A + cases.convolve(kernel, valid, h)

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("ratio", "kernel_size"), [(3, 0), (2, 3), (N + 2, 0)])
def test_is_its_equation(ratio, kernel_size, mask):
    kernel = draw_weights(SOFT(DIM, H, ratio=ratio, kernel_size=kernel_size))
    cases.assert_is(kernel, literal(kernel), MASKS[mask](), reads_keys=False)
