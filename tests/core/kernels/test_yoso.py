"""YOSO-E against its equation pair by pair, its gradients, and what it holds in memory."""

import math

import pytest
import torch
from attention_core import SelfAttention
from attention_core.kernels import YOSO
from torch.testing import assert_close

from tests.core.cases import gradients
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, B, H, N


def angular(tau, scale, surrogate):
    def literal(q, k, valid, h):
        rows = []
        for i, a in enumerate(q):
            row = []
            for j, b in enumerate(k):
                S = scale * (a @ b) / (a.norm() * b.norm())
                w = (1 - torch.acos(S) / math.pi) ** tau
                if surrogate:  # the value of w, the slope tau / 2 w
                    w = w.detach() * (tau / 2 * (S - S.detach())).exp()
                row.append(w * valid[i] * valid[j])
            rows.append(torch.stack(row))
        return torch.stack(rows)

    return literal


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("gradient", ["exact", "surrogate"])
@pytest.mark.parametrize(("tau", "scale", "block"), [(8, 1.0, 128), (3, 0.98, 3), (1, 1.0, 1)])
def test_is_its_equation(tau, scale, block, gradient, mask):
    def run(q):
        return (kernel(q, k, None) @ v.detach()).square().sum()

    kernel = YOSO(DIM, H, tau, scale, gradient, block)
    cases.assert_is(kernel, angular(tau, scale, gradient == "surrogate"), MASKS[mask]())
    q, k, _, v = cases.operands(4)
    ours = torch.autograd.functional.hvp(run, q, q)[1]
    assert_close(ours, torch.func.jvp(torch.func.grad(run), (q,), (q,))[1])


@pytest.mark.parametrize("gradient", ["exact", "surrogate"])
def test_a_token_meets_itself_without_nan(gradient):
    """If q = k the diagonal is 1 for every q: it has no gradient, the other entries have theirs."""
    q, _, x, v = cases.operands()
    y = YOSO(DIM, H, 4, gradient=gradient)(q, q, x) @ v
    off = 1 - torch.eye(N).double()
    a = torch.nn.functional.normalize(q, dim=-1)
    S = (a @ a.mT) * off  # the diagonal leaves the arccosine's end
    W = (1 - S.acos() / math.pi) ** 4
    if gradient == "surrogate":
        W = W.detach() * (1 + 2 * (S - S.detach()))
    dense = W * off + torch.eye(N).double()
    assert_close(y, dense @ v, rtol=1e-6, atol=1e-6)
    assert_close(*gradients([q, v], y, dense @ v), rtol=1e-5, atol=1e-5)
    (slope,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    assert torch.autograd.grad(slope.square().sum(), q)[0].isfinite().all()


def test_opposite_rows_without_nan():
    q = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], requires_grad=True)
    for tau in (1, 2, 8):
        y = YOSO(2, 1, tau)(q, -q, q[0]) @ torch.eye(2)[None, None]
        assert not y.diagonal(dim1=-2, dim2=-1).any()
        assert torch.autograd.grad(y.sum(), q)[0].isfinite().all()


def test_the_readout_and_rows_of_a_layer_have_length_1():
    kernel = YOSO(2, 1)
    z = torch.tensor([[[[3.0, 4.0], [0.0, 0.0]]]])
    assert_close(kernel.postprocess(z), torch.tensor([[[[0.6, 0.8], [0.0, 0.0]]]]))
    assert kernel.postprocess(z.bfloat16()).dtype == torch.bfloat16
    layer = SelfAttention(DIM, H, kernel=YOSO).double()
    layer.proj = torch.nn.Identity()
    y = layer(cases.operands()[2]).unflatten(-1, (H, -1))
    assert_close(y.norm(dim=-1), torch.ones(B, N, H).double())
