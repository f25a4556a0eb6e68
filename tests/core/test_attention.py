"""SelfAttention: torch's own attention when plain, its slots, and the terms that kernels add."""

from functools import partial

import pytest
import torch
from attention_core import AGF, GFSA, ContraNorm, FeatScale, LayerScale, SelfAttention, penalties
from torch import nn
from torch.testing import assert_close

B, N, DIM, HEADS = 3, 11, 12, 4


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(B, N, DIM)


@pytest.fixture
def keep() -> torch.Tensor:
    return torch.arange(N) < torch.tensor([[N], [7], [4]])


def twins(bias: bool = True) -> tuple[SelfAttention, nn.MultiheadAttention]:
    """Our layer and torch's with the same weights."""
    ours = SelfAttention(DIM, HEADS, bias=bias)
    theirs = nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True)
    names = {"qkv.weight": "in_proj_weight", "proj.weight": "out_proj.weight"}
    names |= {"qkv.bias": "in_proj_bias", "proj.bias": "out_proj.bias"} if bias else {}
    state = theirs.state_dict()
    ours.load_state_dict({mine: torch.randn_like(state[yours]) for mine, yours in names.items()})
    theirs.load_state_dict({yours: ours.state_dict()[mine] for mine, yours in names.items()})
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
def test_plain_is_torchs_multihead_attention(x, keep, bias):
    ours, theirs = twins(bias)
    assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-4, atol=1e-5)
    padded = theirs(x, x, x, key_padding_mask=~keep)[0]
    assert_close(ours(x, keep), padded, rtol=1e-4, atol=1e-5)
    future = torch.ones(N, N).triu(1).bool()
    causal = theirs(x, x, x, attn_mask=future)[0]
    assert_close(ours(x, is_causal=True), causal, rtol=1e-4, atol=1e-5)
    assert_close(ours(x, ~future[None]), causal, rtol=1e-4, atol=1e-5)
    both = theirs(x, x, x, key_padding_mask=~keep, attn_mask=future)[0]
    assert_close(ours(x, keep, is_causal=True), both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [FeatScale, partial(ContraNorm, scale=0.1)])
def test_tokens_that_would_meet_are_refused_where_it_is_causal(x, tokens):
    layer = SelfAttention(DIM, HEADS, tokens=tokens)
    with pytest.raises(ValueError, match="would leak future tokens: it cannot be causal"):
        layer(x, is_causal=True)
    SelfAttention(DIM, HEADS, tokens=LayerScale)(x, is_causal=True)


SLOTS = {
    "plain": {},
    "filter": {"filter": GFSA},
    "kernel": {"kernel": AGF},
    "tokens": {"tokens": FeatScale},
    "all": {"filter": GFSA, "kernel": AGF, "tokens": FeatScale, "dropout": 0.5},
}
each_slot = pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)


def scrambled(**slots) -> SelfAttention:
    layer = SelfAttention(DIM, HEADS, **slots)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.5)
    return layer


@each_slot
def test_evaluation_without_gradients_is_training_without_dropout(x, keep, slots):
    layer = scrambled(**slots).eval()
    with_gradients = layer(x, keep)
    with torch.no_grad():
        assert torch.equal(layer(x, keep), with_gradients)
    layer = layer.train()
    layer.dropout = 0.0
    assert torch.equal(layer(x, keep), with_gradients)


@each_slot
def test_padding_equals_truncation(x, slots):
    layer, m = scrambled(**slots).eval(), 7
    keep = (torch.arange(N) < m).expand(B, N)
    assert_close(layer(x, keep)[:, :m], layer(x[:, :m]), rtol=1e-4, atol=1e-5)


@each_slot
def test_every_parameter_learns(x, slots):
    layer = scrambled(**slots)
    layer(x).square().sum().backward()
    learned = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    silent = {name for name, p in learned.items() if p.grad is None or not p.grad.any()}
    assert not silent


def test_slots_are_made_from_width_and_heads():
    asked = {}

    def note(name, made):
        return lambda *sizes: asked.setdefault(name, sizes) and made(*sizes)

    slots = {"filter": note("filter", GFSA), "kernel": note("kernel", AGF)}
    SelfAttention(DIM, HEADS, **slots, tokens=note("tokens", FeatScale))
    assert asked == {"filter": (HEADS,), "kernel": (DIM, HEADS), "tokens": (DIM,)}


def test_tokens_see_the_mask(x, keep):
    layer = scrambled(tokens=FeatScale)
    y = SelfAttention.forward(layer, x, keep)
    layer.tokens, tokens = None, layer.tokens
    assert_close(y, tokens(layer(x, keep), keep))


def test_dropout_acts_in_training_alone(x):
    layer = scrambled(dropout=0.5)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(("dim", "heads"), [(10, 4), (10, 0)])
def test_refuses_a_width_that_heads_do_not_divide(dim, heads):
    with pytest.raises(ValueError, match=f"width {dim} is not divisible by {heads} heads"):
        SelfAttention(dim, heads)


def stack() -> nn.Sequential:
    def agf(dim, heads):
        return AGF(dim, heads, gamma=0.1)

    return nn.Sequential(
        SelfAttention(DIM, HEADS, kernel=agf),
        SelfAttention(DIM, HEADS),
        SelfAttention(DIM, HEADS, kernel=agf),
    )


def test_penalties_are_one_scalar_a_kernel_and_pass(x):
    model = stack()
    with penalties(model) as terms:
        model(x)
        model(x)
    assert [term.shape for term in terms] == [torch.Size()] * 4
    assert_close(terms[:2], terms[2:])
    torch.stack(terms).mean().backward()
    assert model[0].qkv.weight.grad.any()


def test_penalties_leave_no_hook_behind(x):
    model = stack()
    with pytest.raises(RuntimeError, match="stop"), penalties(model) as terms:  # noqa: PT012
        model(x)
        raise RuntimeError("stop")
    model(x)
    assert len(terms) == 2
    assert not any(module._forward_hooks for module in model.modules())


def test_tokens_see_a_key_mask_in_whatever_shape_attention_does():
    from attention_core import FeatScale

    layer = SelfAttention(12, 3, tokens=FeatScale)
    torch.nn.init.ones_(layer.tokens.t)
    x, keep = torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[7], [4]])
    additive = torch.zeros(2, 1, 1, 7).masked_fill(~keep[:, None, None], -torch.inf)
    expected = layer(x, keep)
    assert torch.allclose(layer(x, keep[:, None, None]), expected)
    assert torch.allclose(layer(x, additive), expected)
    bias = additive.expand(2, 3, 7, 7).contiguous()
    assert torch.allclose(layer(x, bias, valid_mask=keep), expected)
    assert not torch.allclose(layer(x, bias), expected)
    with pytest.raises(ValueError, match="a mask must be boolean"):
        layer(x, keep.float())
