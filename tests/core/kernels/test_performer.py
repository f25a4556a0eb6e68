"""Performer against its random features, token by token, and against the softmax they estimate."""

import math
from itertools import pairwise

import pytest
import torch
from attention_core.kernels import Performer
from attention_core.kernels.performer import orthogonal_gaussian
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H

M = 9  # two blocks of 4 and one row
OPTIONS = [
    {"activation": activation, "mask_keys": mask_keys, "scaled": scaled}
    for activation, scaled in (("softmax", "once"), ("softmax", "twice"), ("relu", "once"))
    for mask_keys in ("removed", "zeroed")
]


def make(**options):
    return Performer(DIM, H, M, **options).double()


def literal(kernel):
    """The map of one head of one sample, feature by feature; c is a constant, as in the kernel."""
    power = {"once": 0.25, "twice": 0.5}[kernel.scaled]

    def phi(u, c):
        if kernel.activation == "relu":
            return torch.stack([(u @ w).clamp(min=0) + kernel.eps for w in kernel.projection])
        return torch.stack([(u @ w - u @ u / 2 - c).exp() + kernel.eps for w in kernel.projection])

    def highest(tokens):
        return max((u @ w).item() for u in tokens for w in kernel.projection)

    def map_of(q, k, valid, h):
        q, k = q / q.shape[-1] ** power, k / k.shape[-1] ** power
        k = torch.stack([k[j] if valid[j] else 0 * k[j] for j in range(len(k))])
        seen = [j for j in range(len(k)) if valid[j] or kernel.mask_keys == "zeroed"]
        c = highest([k[j] for j in seen])
        A = torch.zeros(len(q), len(k)).double()
        columns = {j: phi(k[j], c) for j in seen}
        for i in (i for i in range(len(q)) if valid[i]):
            row = phi(q[i], highest([q[i]]))
            weights = {j: row @ columns[j] for j in seen}
            for j in (j for j in seen if valid[j]):
                A[i, j] = weights[j] / sum(weights.values())
        return A

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o.values()))
def test_is_its_equation(options, mask):
    kernel = make(**options, eps=1e-3)
    cases.assert_is(kernel, literal(kernel), MASKS[mask]())


@pytest.mark.parametrize("scaled", ["once", "twice"])
def test_many_features_approach_softmax(scaled):
    q, k, x, _ = (t.detach() / 2 for t in cases.operands())
    logits = q @ k.mT / (math.sqrt(q.shape[-1]) if scaled == "once" else q.shape[-1])
    error = {}
    for features in (30, 20_000):
        kernel = Performer(DIM, H, features, eps=0.0, scaled=scaled).double()
        error[features] = (kernel(q, k, x).dense() - logits.softmax(-1)).abs().mean().item()
    assert error[20_000] < min(1e-3, error[30] / 5)


def test_blocks_are_orthogonal_and_as_long_as_gaussians():
    width = 6
    w = orthogonal_gaussian(3 * width + 1, width).double()
    for start in range(0, len(w), width):
        block = w[start : start + width]
        gram = block @ block.mT
        assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-5)
    lengths = orthogonal_gaussian(30_000, width).square().sum(-1)  # chi^2: mean 6, variance 12
    assert_close(lengths.mean(), torch.tensor(6.0), rtol=0.02, atol=0)
    assert_close(lengths.var(), torch.tensor(12.0), rtol=0.06, atol=0)


def test_features_lean_to_no_side():
    """Q of a library's QR does: its first column's first entry is always negative on LAPACK."""
    w = orthogonal_gaussian(30_000, 3).unflatten(0, (-1, 3))  # standard error .01
    assert_close(w.mean(0), torch.zeros(3, 3), rtol=0, atol=0.05)
    assert_close(w.square().mean(0), torch.ones(3, 3), rtol=0, atol=0.1)


def test_redraws_every_so_many_training_passes():
    kernel, (q, k, x, v) = make(redraw_every=2), cases.operands()
    seen, outputs = [], []
    for _ in range(5):
        outputs.append(kernel(q, k, x) @ v)
        seen.append(kernel.projection)
    assert [torch.equal(*two) for two in pairwise(seen)] == [True, False, True, False]
    torch.autograd.grad(sum(y.sum() for y in outputs), [q, k, v])  # none was overwritten
    y = checkpoint(lambda q: kernel(q, k, x) @ v, q, use_reentrant=False)
    found = torch.autograd.grad(y.sum(), q)
    assert_close(found, torch.autograd.grad((kernel.eval()(q, k, x) @ v).sum(), q))
    for _ in range(3):
        assert_close(kernel(q, k, x) @ v, outputs[-1], rtol=0, atol=0)
