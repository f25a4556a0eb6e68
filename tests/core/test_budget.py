"""Costs of attention: linear memory beyond the maps that a CPU forms, and multiplications."""

import pytest
import torch
from attention_core import GFSA, AttnScale, ContraNorm, Polynomial, SelfAttention, penalties
from attention_core.operators import recomputed, softmax
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
    with Largest() as seen, penalties(layer) as terms:
        (layer(x, *args, **options).sum() + sum(terms)).backward()
    return seen.numel


def flops(layer: nn.Module, n: int, device: str = "meta") -> int:
    """On meta by default, as the counter is blind to the CPU's fused attention."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.to(device)(torch.zeros(1, n, DIM, device=device))
    return counter.get_total_flops()


@pytest.fixture
def fused(monkeypatch):
    """Apply maps as a GPU does."""
    monkeypatch.setattr(softmax, "can_recompute", lambda *operands: False)


@pytest.mark.usefixtures("fused")
@all_cases()
@pytest.mark.parametrize("kind", ["full", "causal", "padded"])
def test_filters_need_linear_memory(case, kind):
    layer, sizes = SelfAttention(DIM, HEADS, filter=case.make), []
    for n in (256, 512):
        mask = torch.ones(1, n, dtype=torch.bool) if kind == "padded" else None
        sizes.append(largest(layer, n, mask, is_causal=kind == "causal"))
    assert sizes[1] == 2 * sizes[0] < 512**2 / 2


def test_a_filter_on_a_cpu_needs_the_memory_of_a_few_maps():
    layer = SelfAttention(DIM, HEADS, filter=lambda heads: Polynomial(heads, K=4))
    with Largest() as seen:
        layer(torch.randn(32, 128, DIM, requires_grad=True)).sum().backward()
    assert seen.numel <= recomputed.CHUNK_NUMEL < 32 * HEADS * 128**2 / 5


def test_contranorm_needs_linear_memory_and_a_dense_map_is_seen():
    layer = ContraNorm(DIM, 0.1)
    assert largest(layer, 512) == 2 * largest(layer, 256)
    assert largest(ContraNorm(DIM, 0.1, dual=True), 256) == 256**2


@pytest.mark.parametrize(
    ("filter", "applications"),
    [(GFSA, 2), (AttnScale, 1), (lambda heads: Polynomial(heads, K=5), 5)],
)
def test_filters_cost_their_applications(filter, applications):
    n = 256
    extra = flops(SelfAttention(DIM, HEADS, filter=filter), n) - flops(SelfAttention(DIM, HEADS), n)
    one = 2 * 2 * n**2 * DIM  # q k^T and A v, two operations a multiplication
    assert extra == (applications - 1) * one
