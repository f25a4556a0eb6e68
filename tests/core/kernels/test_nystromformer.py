"""Nystromformer against its equations, landmark by landmark, and its inverse against LAPACK's."""

import pytest
import torch
from attention_core.kernels import Nystromformer
from attention_core.kernels.landmark import LandmarkOperator
from attention_core.kernels.nystromformer import pseudo_inverse
from torch.testing import assert_close

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, TIGHT, B, D, H, N


def inverse(A, steps, scale):
    Z, eye = A.T / scale, torch.eye(len(A)).double()
    for _ in range(steps):
        Z = Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z))) / 4
    return Z


def softmaxes(q, k):
    rows = [torch.stack([a @ b for b in k]).mul(D**-0.5).exp() for a in q]
    return torch.stack([row / row.sum() for row in rows])


def ours(kernel):
    m = kernel.landmarks

    def literal(q, k, valid, h):
        real = [t for t in range(len(q)) if valid[t]]
        if len(real) <= m:
            small = softmaxes(q[real], k[real])
        else:
            parts = [[t for r, t in enumerate(real) if r * m // len(real) == s] for s in range(m)]
            mean_q = torch.stack([sum(q[t] for t in s) / len(s) for s in parts])
            mean_k = torch.stack([sum(k[t] for t in s) / len(s) for s in parts])
            middle = softmaxes(mean_q, mean_k)
            Z = inverse(middle, kernel.iterations, middle.sum(0).max() * middle.sum(1).max())
            small = softmaxes(q[real], mean_k) @ Z @ softmaxes(mean_q, k[real])
        rows, columns = torch.tensor(real)[:, None], torch.tensor(real)[None, :]
        A = torch.zeros(len(q), len(q)).double().index_put((rows, columns), small)
        return A + cases.convolve(kernel, valid, h)

    return literal


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("landmarks", "kernel_size"), [(3, 0), (3, 15), (5, 5)])
def test_is_its_equation(landmarks, kernel_size, mask):
    kernel = Nystromformer(DIM, H, landmarks, kernel_size, iterations=4).double()
    cases.assert_is(kernel, ours(kernel), MASKS[mask]())


@pytest.mark.parametrize("masked", [False, True])
def test_published_segments_count_masked_zeros(masked):
    n, m = 6, 3
    kernel = Nystromformer(DIM, H, m, 3, init="original", segments="published").double()
    q, k, x, v = cases.operands(n)
    valid = torch.ones(B, n, dtype=torch.bool)
    valid[1, 3:] = not masked
    maps = {}
    for i, h in ((i, h) for i in range(B) for h in range(H)):
        a, b = ([t[i, h, j] * valid[i, j] for j in range(n)] for t in (q, k))
        means = [[(t[2 * s] + t[2 * s + 1]) / 2 for s in range(m)] for t in (a, b)]
        last = softmaxes(means[0], b) * valid[i]
        maps[i, h] = softmaxes(a, means[1]), softmaxes(*means), last / last.sum(1, keepdim=True)
    scale = torch.stack([middle.sum(0).max() for _, middle, _ in maps.values()]).max()
    y = torch.stack([v[i, h] * 0 for i in range(B) for h in range(H)]).view(B, H, n, D)
    for (i, h), (first, middle, last) in maps.items():
        A = first @ inverse(middle, 6, scale) @ last + cases.convolve(kernel, valid[i].tolist(), h)
        y = y.index_put((torch.tensor(i), torch.tensor(h)), A @ v[i, h])
    mine = kernel(q, k, x, valid if masked else None) @ v
    assert_close(mine, y, **TIGHT)
    cases.assert_same_gradients([q, k, v, kernel.conv], [mine], [y])


@pytest.mark.parametrize("init", ["per_matrix", "original"])
def test_inverse_converges(init):
    logits = 4 * torch.eye(5).double() + torch.randn(B, H, 5, 5).double()
    A = logits.softmax(-1)
    assert_close(pseudo_inverse(A, 12, init), torch.linalg.pinv(A), rtol=1e-9, atol=1e-9)
    assert_close(pseudo_inverse(A, 6, init), torch.linalg.pinv(A), rtol=0.1, atol=0.1)


def test_factors_keep_their_precision():
    left, core, right = (torch.randn(B, H, *size) for size in ((N, 5), (5, 5), (N, 5)))
    v = torch.randn(B, H, N, D).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = LandmarkOperator(left, core, right) @ v
    assert y.dtype == torch.bfloat16
    assert_close(y, (left @ core @ right.mT @ v.float()).bfloat16())
