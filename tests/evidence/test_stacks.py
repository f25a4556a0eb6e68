"""Layers of a stack equal their equations, and methods differ in nothing but themselves."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.evidence.methods import STACKED
from benchmarks.evidence.stacks import STACKS, apply_block, draw_attention, draw_mlp


def apply_softmax_attention(attention, x):
    """One head of plain attention, literally."""
    q, k, v = attention.qkv(x).chunk(3, -1)
    return attention.proj((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


@pytest.mark.parametrize("stack", STACKS)
def test_a_layer_equals_its_equation(stack):
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    attention, mlp = draw_attention(STACKED["plain"], 6, 1), draw_mlp(6)

    def attend(x):
        return apply_softmax_attention(attention, x)

    def normalize(x):
        return F.layer_norm(x, (6,))

    sums = {
        "attention": lambda: attend(x),
        "residual": lambda: x + attend(x),
        "mlp": lambda: (y := x + attend(x)) + mlp(y),
        "pre_ln": lambda: (y := x + attend(normalize(x))) + mlp(normalize(y)),
        "post_ln": lambda: normalize((y := normalize(x + attend(x))) + mlp(y)),
    }
    expected = sums[stack]()
    if stack in ("attention", "residual", "mlp"):
        expected = expected / expected.square().mean((1, 2), keepdim=True).sqrt()
    torch.testing.assert_close(apply_block(stack, attention, mlp, x), expected)


@pytest.mark.parametrize("name", [name for name in STACKED if name != "plain"])
def test_methods_share_their_weights_and_differ_in_their_output(name):
    layers = []
    for method in (STACKED["plain"], STACKED[name]):
        torch.manual_seed(3)
        layers.append(draw_attention(method, 8, 2))
    plain, other = layers
    assert torch.equal(plain.qkv.weight, other.qkv.weight)
    assert torch.equal(plain.proj.weight, other.proj.weight)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    assert not torch.allclose(plain(x), other(x))
