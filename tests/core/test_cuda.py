"""A GPU computes what a CPU does: every filter and kernel, dropout, precision, and memory."""

import copy
from functools import partial

import pytest
import torch
from attention_core import GFSA, SelfAttention, Softmax
from torch import nn
from torch.testing import assert_close

from tests.core import cases
from tests.core.kernels.cases import CASES, DIM, B, H, N, gaps, layer_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compare_devices(layer: nn.Module, mask: torch.Tensor | None) -> None:
    """Compare output and gradients of float64 on both devices."""
    layer = layer.double().eval()
    other, x = copy.deepcopy(layer).cuda(), torch.randn(B, N, DIM).double()
    y = layer(x, mask)
    z = other(x.cuda(), None if mask is None else mask.cuda())
    assert_close(z.cpu(), y, rtol=1e-8, atol=1e-8)
    for out in (y, z):
        out.square().sum().backward()
    for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
        if mine.grad is not None:
            assert_close(theirs.grad.cpu(), mine.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
@cases.all_cases()
def test_a_filter_is_that_of_the_cpu(case, masked):
    layer = SelfAttention(DIM, H, filter=case.make)
    cases.draw_weights(layer.filter)
    compare_devices(layer, gaps() if masked else None)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_is_that_of_the_cpu(case, masked):
    compare_devices(layer_of(case), gaps() if masked else None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype):
    layer = SelfAttention(64, 4, filter=partial(GFSA, wK=0.5)).cuda()
    x = torch.randn(2, 333, 64, device="cuda")
    with torch.autocast("cuda", dtype):
        y = layer(x)
    assert y.dtype == dtype
    assert_close(y.float(), layer(x), rtol=0.05, atol=0.02)


def test_memory_grows_with_the_length_not_with_its_square():
    peaks = []
    for n in (8192, 32768):
        q, k, v = (torch.randn(1, 4, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        v.requires_grad_()
        filter = GFSA(4, wK=0.5).cuda()
        filter(Softmax(q[:, :, :64], k[:, :, :64]), v[:, :, :64])  # workspaces are made
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        filter(Softmax(q, k), v).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del q, k, v
    assert peaks[1] < 4.5 * peaks[0]
    assert peaks[1] < 32768**2  # bytes: a map of one head in one byte an entry
