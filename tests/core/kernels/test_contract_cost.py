"""The cost of kernels: time and memory by the sequence length, and a graph without breaks."""

import torch
from attention_core import SelfAttention, penalties
from torch.testing import assert_close

from tests.core.cases import gradients
from tests.core.kernels.cases import CASES, DIM, B, Case, H, N, all_cases, gaps, layer_of
from tests.core.test_budget import Largest, flops


@all_cases()
def test_time(case):
    growth = flops(layer_of(case, 512), 512, "cpu") / flops(layer_of(case, 256), 256, "cpu")
    assert (growth < 2.2) == case.linear_time
    assert growth < 4.1


def test_time_of_softmax_is_seen_to_be_quadratic():
    softmax = SelfAttention(DIM, H)
    assert 3.5 < flops(softmax, 512) / flops(softmax, 256) < 4.1


def largest(case: Case, n: int) -> int:
    layer, x = layer_of(case, n), torch.randn(1, n, DIM, requires_grad=True)
    with Largest() as seen, penalties(layer) as terms:
        y = layer(x, torch.ones(1, n, dtype=torch.bool))
        (y.sum() + sum(terms)).backward()
    return seen.numel


@all_cases()
def test_memory_is_linear(case):
    assert largest(case, 512) <= 2.2 * largest(case, 256) < 512**2


@all_cases([case for case in CASES if case.compiles])
def test_compiles_in_one_graph(case):
    layer, x = layer_of(case), torch.randn(B, N, DIM)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(x, gaps()), layer(x, gaps())
    assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert_close(*gradients(list(layer.parameters()), ours, theirs), rtol=1e-3, atol=1e-4)


@all_cases()
def test_a_trace_computes_the_layer(case):
    layer = layer_of(case).eval()
    traced = torch.jit.trace(layer, torch.randn(B, N, DIM), check_trace=False)
    x = torch.randn(B, N, DIM)
    assert_close(traced(x), layer(x))
