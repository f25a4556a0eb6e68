"""SelfAttention: equal to torch's attention without mechanisms, its slots, and penalties."""

from functools import partial

import pytest
import torch
from attention_core import AGF, ContraNorm, FeatScale, LayerScale, SelfAttention, penalties
from torch import nn
from torch.nn.attention.bias import causal_upper_left
from torch.testing import assert_close

from tests.core.cases import draw_weights

B, N, DIM, HEADS = 3, 11, 12, 4


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(B, N, DIM)


@pytest.fixture
def valid() -> torch.Tensor:
    return torch.arange(N) < torch.tensor([[N], [7], [4]])


def make_pair(bias: bool = True) -> tuple[SelfAttention, nn.MultiheadAttention]:
    """Make our layer and torch's, with the same weights."""
    ours = SelfAttention(DIM, HEADS, bias=bias)
    theirs = nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True)
    state = {name: torch.randn_like(weight) for name, weight in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    names = [name.replace("in_proj_", "qkv.").replace("out_proj", "proj") for name in state]
    ours.load_state_dict(dict(zip(names, state.values(), strict=True)))
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
def test_plain_is_torchs_multihead_attention(x, valid, bias):
    ours, theirs = make_pair(bias)
    future = torch.ones(N, N).triu(1).bool()
    for mine, masks in [
        (ours(x), {}),
        (ours(x, valid), {"key_padding_mask": ~valid}),
        (ours(x, is_causal=True), {"attn_mask": future}),
        (ours(x, ~future[None]), {"attn_mask": future}),
        (ours(x, causal_upper_left(N, N)), {"attn_mask": future}),
        (ours(x, valid, is_causal=True), {"key_padding_mask": ~valid, "attn_mask": future}),
    ]:
        assert_close(mine, theirs(x, x, x, **masks)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [FeatScale, partial(ContraNorm, scale=0.1)])
def test_tokens_that_leak_the_future_are_refused(x, tokens):
    layer = SelfAttention(DIM, HEADS, tokens=tokens)
    with pytest.raises(ValueError, match="would leak future tokens: it cannot be causal"):
        layer(x, is_causal=True)
    past = torch.ones(N, N).tril().bool()[None]
    with pytest.raises(ValueError, match="the mask keeps tokens apart that"):
        layer(x, past)
    SelfAttention(DIM, HEADS, tokens=LayerScale)(x, past, is_causal=True)


@pytest.mark.parametrize("run", [lambda m: m, partial(torch.compile, backend="eager")])
def test_penalties_are_one_scalar_per_kernel_and_pass_and_leave_nothing_behind(x, run):
    agf = partial(AGF, gamma=0.1)
    model = run(nn.Sequential(*(SelfAttention(DIM, HEADS, kernel=k) for k in (agf, None, agf))))
    model(x)
    with penalties(model) as terms:
        model(x)
        model(x)
    assert [term.shape for term in terms] == [torch.Size()] * 4
    assert_close(terms[:2], terms[2:])
    torch.stack(terms).mean().backward()
    assert next(model.parameters()).grad.any()
    with pytest.raises(RuntimeError, match="stop"), penalties(model) as terms:  # noqa: PT012
        model(x)
        raise RuntimeError("stop")
    model(x)
    assert len(terms) == 2
    assert not any("forward" in vars(m) for m in model.modules() if isinstance(m, AGF))


def test_tokens_get_a_key_mask_of_any_shape(x, valid):
    layer = draw_weights(SelfAttention(DIM, HEADS, tokens=FeatScale)).float()
    additive = torch.zeros(B, 1, 1, N).masked_fill(~valid[:, None, None], -torch.inf)
    expected = layer(x, valid)
    assert_close(layer(x, valid[:, None, None]), expected)
    assert_close(layer(x, additive), expected)
    bias = additive.expand(B, HEADS, N, N).contiguous()
    assert_close(layer(x, bias, valid_mask=valid), expected)
    assert_close(layer(x, bias), expected)
    with pytest.raises(ValueError, match="takes a boolean mask"):
        layer(x, valid.float())


@pytest.mark.parametrize("kernel", [None, AGF])
def test_float32_keeps_attention_out_of_autocast(kernel):
    layer, x, seen = SelfAttention(DIM, HEADS, kernel=kernel), torch.randn(2, 5, DIM), []
    layer.filter.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].dtype))
    single = SelfAttention(DIM, HEADS, kernel=kernel, float32=True)
    single.load_state_dict(layer.state_dict())
    assert_close(single(x), layer(x))
    single.filter.register_forward_hook(lambda _, given, y: seen.extend((given[1].dtype, y.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
        y = single(x.bfloat16())
    assert seen[1:] == [torch.bfloat16, torch.float32, torch.float32]
    assert y.dtype == torch.bfloat16  # from the output projection, which autocast does lower
    y.float().sum().backward()
    assert single.qkv.weight.grad.isfinite().all()
