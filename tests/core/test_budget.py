"""What attention costs: no (n, n) tensor is ever made, and the number of multiplications."""

import pytest
import torch
from attention_core import AGF, GFSA, AttnScale, ContraNorm, Polynomial, SelfAttention
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tests.core.cases import all_cases

DIM, HEADS = 12, 3


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *made, 0)
        return out


def largest(layer: nn.Module, n: int, *args, **options) -> int:
    x = torch.randn(1, n, DIM, requires_grad=True)
    with Largest() as seen:
        layer(x, *args, **options).sum().backward()
    return seen.numel


def flops(layer: nn.Module, n: int) -> int:
    """On meta, as the counter is blind to the CPU's fused attention."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.to("meta")(torch.empty(1, n, DIM, device="meta"))
    return counter.get_total_flops()


@all_cases()
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_filters_need_linear_memory(case, options):
    layer = SelfAttention(DIM, HEADS, filter=case.make)
    assert largest(layer, 512, **options) == 2 * largest(layer, 256, **options) < 512**2 / 2


@all_cases()
def test_filters_of_padded_samples_need_linear_memory(case):
    layer = SelfAttention(DIM, HEADS, filter=case.make)
    long, short = (torch.ones(1, n, dtype=torch.bool) for n in (512, 256))
    assert largest(layer, 512, long) == 2 * largest(layer, 256, short)


def test_agf_and_contranorm_need_linear_memory():
    for layer in (SelfAttention(DIM, HEADS, kernel=AGF), ContraNorm(DIM, 0.1)):
        assert largest(layer, 512) == 2 * largest(layer, 256)


def test_the_measure_sees_a_dense_map():
    assert largest(ContraNorm(DIM, 0.1, dual=True), 256) == 256**2


def test_agf_is_linear_in_time():
    agf = SelfAttention(DIM, HEADS, kernel=AGF)
    assert flops(agf, 512) == 2 * flops(agf, 256)


@pytest.mark.parametrize(
    ("filter", "applications"),
    [(GFSA, 2), (AttnScale, 1), (lambda heads: Polynomial(heads, K=5), 5)],
)
def test_filters_cost_their_applications(filter, applications):
    n = 256
    extra = flops(SelfAttention(DIM, HEADS, filter=filter), n) - flops(SelfAttention(DIM, HEADS), n)
    one = 2 * 2 * n**2 * DIM  # q k^T and A v, two operations a multiplication
    assert extra == (applications - 1) * one
