"""Filters of speechbrain's attention: the literal equation, masks, memory, and other slots."""

import copy
from functools import partial

import pytest
import torch
from attention_core import (
    GFSA,
    CenteredAttention,
    FeatScale,
    LayerScale,
    Plain,
    attach,
)
from speechbrain.nnet.attention import MultiheadAttention
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.core import reference
from tests.hosts.speech import (
    DEPTH,
    FILTERS,
    HEADS,
    LENGTHS,
    REAL,
    WIDTH,
    B,
    N,
    asr,
    call,
    each_filter,
    each_kind,
    layer,
    positions,
    scramble,
)


def literal_map(host: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, nn.Module]:
    """A, v and the output projection of a layer, from its own weights, for one utterance."""
    n, d = len(x), WIDTH // HEADS
    if isinstance(host, MultiheadAttention):
        projected = x @ host.att.in_proj_weight.T + host.att.in_proj_bias
        q, k, v = projected.view(n, 3, HEADS, d).unbind(1)
        logits, out = torch.einsum("ihd,jhd->hij", q, k) / d**0.5, host.att.out_proj
    else:
        q, k, v = (x @ host.in_proj_weight.T).view(n, HEADS, 3, d).unbind(2)
        p = (positions(host, n)[0] @ host.linear_pos.weight.T).view(-1, HEADS, d)
        p = p[n - 1 - torch.arange(n)[:, None] + torch.arange(n)]  # (i, j): of i - j
        u, w = (b.reshape(HEADS, d) for b in (host.pos_bias_u, host.pos_bias_v))
        logits = torch.einsum("ihd,jhd->hij", q + u, k) + torch.einsum("ihd,ijhd->hij", q + w, p)
        logits, out = logits / WIDTH**0.5, host.out_proj
    weights = logits.exp()
    return weights / weights.sum(-1, keepdim=True), v.transpose(0, 1), out


def literal(host: nn.Module, filter: nn.Module, x: Tensor) -> Tensor:
    A, v, out = literal_map(host, x)
    J = torch.full_like(A, 1 / len(x))
    if isinstance(filter, GFSA):
        c = [w.view(HEADS, 1, 1) for w in (filter.w0, filter.w1, filter.wK)]
        H = reference.gfsa(A, J, c, filter.K)
    else:
        H = reference.attnscale(A, J, [filter.omega.view(HEADS, 1, 1)])
    return (H @ v).transpose(0, 1).flatten(1) @ out.weight.T + out.bias


@each_kind
@each_filter
def test_a_filter_is_the_literal_equation_over_the_real_frames(kind, name):
    x = torch.randn(B, N, WIDTH).double().requires_grad_()
    module = scramble(attach(layer(kind), FILTERS[name]).double())
    padding = torch.arange(N) >= REAL[:, None]
    y, _ = call(module, x, key_padding_mask=padding)
    learned = [x, *(p for p in module.parameters() if p.requires_grad)]
    probe = torch.randn_like(y)
    found = torch.autograd.grad((y * probe)[~padding].sum(), learned)
    total = 0.0
    for i, n in enumerate(REAL):
        expected = literal(module, module.filter, x[i, :n])
        assert_close(y[i, :n], expected, rtol=1e-10, atol=1e-10)
        total = total + (expected * probe[i, :n]).sum()
    for ours, theirs in zip(found, torch.autograd.grad(total, learned), strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@each_kind
def test_maps_are_formed_where_they_are_asked_for(kind):
    x, module = torch.randn(1, N, WIDTH).double(), scramble(attach(layer(kind), GFSA).double())
    y, none = call(module, x)
    assert none is None
    assert torch.equal(call(module, x, return_attn_weights=False), y)
    same, H = call(module, x, return_attn_weights=True)
    A = literal_map(module, x[0])[0]
    c = [w.view(HEADS, 1, 1) for w in (module.filter.w0, module.filter.w1, module.filter.wK)]
    expected = reference.gfsa(A, A, c, 3)
    assert torch.equal(same, y)
    assert_close(H[0], expected.mean(0) if kind == "regularMHA" else expected)


def test_a_formed_map_is_applied_once_more_and_never_squared():
    counts, x = [], torch.randn(B, N, WIDTH).double()
    for make in (Plain, GFSA):
        module = attach(layer("RelPosMHAXL"), make)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call(module, x)
        counts.append(counter.get_total_flops())
    assert counts[1] - counts[0] == 2 * B * N * N * WIDTH


@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_map_takes_memory_linear_in_frames(padded):
    n, sizes = 257, []
    module, x = attach(layer("regularMHA").float(), GFSA), torch.randn(B, n, WIDTH)
    padding = torch.arange(n).expand(B, n) >= 200 if padded else None
    with saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        module(x, x, x, key_padding_mask=padding)[0].sum().backward()
    assert 0 < max(sizes) < B * HEADS * n * n / 10


@each_kind
def test_a_layer_compiles_in_one_graph(kind):
    module, x = attach(layer(kind), FILTERS["gfsa"]), torch.randn(B, N, WIDTH).double()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    padding = torch.arange(N) >= REAL[:, None]
    y = compiled(x, x, x, pos_embs=positions(module), key_padding_mask=padding)[0]
    assert_close(y, call(module, x, key_padding_mask=padding)[0])


@each_kind
@pytest.mark.parametrize("make", [*FILTERS.values(), CenteredAttention])
def test_padding_is_truncation(kind, make):
    model, x = scramble(attach(asr(kind=kind), make)), torch.randn(B, N, 7)
    other, short = x.clone(), int(REAL[1])
    other[1, short:] = 3.0
    y, replaced = (model.encode(frames, LENGTHS) for frames in (x, other))
    assert torch.equal(y[1, :short], replaced[1, :short])
    truncated = model.encode(x[1:, :short], torch.ones(1))
    assert_close(y[1:, :short], truncated, rtol=1e-4, atol=1e-4)


@each_kind
@pytest.mark.parametrize("make", [*FILTERS.values(), CenteredAttention])
def test_a_causal_encoder_does_not_see_the_future(kind, make):
    model, x = scramble(attach(asr(kind=kind, causal=True), make)), torch.randn(B, N, 7)
    later = x.clone()
    later[:, 6:] = torch.randn(B, N - 6, 7)
    y, other = model.encode(x), model.encode(later)
    assert_close(y[:, :6], other[:, :6], rtol=0, atol=1e-6)
    assert (y[:, 6:] - other[:, 6:]).abs().max() > 1e-2


@each_kind
def test_rows_without_a_key_are_zero_and_harm_no_other(kind):
    x, module = torch.randn(B, N, WIDTH).double(), attach(layer(kind), FILTERS["gfsa"])
    padding = torch.zeros(B, N, dtype=torch.uint8)
    padding[1] = 1
    y = call(module, x, key_padding_mask=padding)[0]
    y.sum().backward()
    assert_close(y[0], call(module, x[:1])[0][0])
    pairs = torch.zeros(N, N).double().index_fill(0, torch.tensor([2]), -torch.inf)
    given = call(module, x, attn_mask=pairs)[0]
    given.sum().backward()
    assert y.isfinite().all()
    assert given.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.requires_grad)


@each_kind
def test_tokens_sit_behind_the_projection_and_see_no_padding(kind):
    stock, x, short = asr(kind=kind), torch.randn(B, N, 7), int(REAL[1])
    model = attach(copy.deepcopy(stock), tokens=partial(FeatScale, gain=1))
    names = [name for name, _ in model.named_modules() if name.endswith("tokens")]
    assert len(names) == DEPTH
    assert all(name.startswith("encoder.") for name in names)
    for name, weight in model.named_parameters():
        if "tokens" in name:
            nn.init.normal_(weight)
    y, truncated = model.encode(x, LENGTHS), model.encode(x[1:, :short], torch.ones(1))
    assert_close(y[1:, :short], truncated, rtol=1e-4, atol=1e-4)
    assert (y - stock.encode(x, LENGTHS)).abs().max() > 1e-2


@each_kind
def test_tokens_do_not_meet_in_a_causal_encoder(kind):
    x = torch.randn(B, N, 7)
    with pytest.raises(ValueError, match="FeatScale would mix them"):
        attach(asr(kind=kind, causal=True), tokens=FeatScale).encode(x)
    scaled = attach(asr(kind=kind, causal=True), tokens=LayerScale).encode(x)
    assert scaled.isfinite().all()
