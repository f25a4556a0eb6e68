"""Layers of a stack equal their equations, and methods differ in nothing but themselves."""

import pytest
import torch
import torch.nn.functional as F
from attention_core import spectral
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evidence.methods import STACKED, TRAINED
from benchmarks.evidence.settings import QUICK
from benchmarks.evidence.stacks import (
    STACKS,
    apply_block,
    divide_by_rms,
    draw_attention,
    draw_mlp,
    list_units,
    measure_stack,
)


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


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 99))
def test_one_factor_a_sample_changes_no_measure(num_tokens, dim, seed):
    x = torch.randn(3, num_tokens, dim, generator=torch.Generator().manual_seed(seed)).double()
    for measure in (spectral.token_cosine, spectral.hfc_lfc, spectral.effective_rank):
        torch.testing.assert_close(measure(divide_by_rms(x)), measure(x))


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


def test_the_label_of_a_method_is_no_part_of_its_measurement():
    for method in {**STACKED, **TRAINED}.values():
        assert method.label
        assert "label" not in method.describe_layer()


def test_attention_alone_makes_tokens_equal_and_the_high_pass_polynomial_does_not():
    sizes = {"dim": 8, "num_heads": 2, "num_tokens": 6, "num_samples": 2, "depths": (0, 12)}

    def measure_last(name):
        layer = STACKED[name].describe_layer()
        return measure_stack("attention", name, layer, seed=0, **sizes)[-1]

    assert measure_last("plain")["hfc_lfc"] < 1e-6
    assert measure_last("polynomial")["hfc_lfc"] > 0.1


def test_units_cover_every_stack_method_and_seed():
    units = list_units(QUICK.stacks)
    assert len(units) == len(STACKS) * len(STACKED) * len(QUICK.stacks.seeds)
    assert len({str(unit) for unit in units}) == len(units)
