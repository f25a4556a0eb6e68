"""Speech recognizers of speechbrain: filters in the encoder, and a decoder that stays plain."""

import copy
from functools import partial

import pytest
import torch
from attention_core import attach, detach
from attention_core.filters import CenteredAttention, Plain
from attention_core.tokens import FeatScale, LayerScale
from torch import Tensor, nn
from torch.testing import assert_close

from tests.hosts import speechbrain_models as models
from tests.hosts.helpers import LEARNED, check_dense, randomize
from tests.hosts.speechbrain_models import DEPTH, FILTERS, HEADS, PADDING, WIDTH, B, N, all_kinds

# torch warns of the masks that speechbrain passes
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
all_makers = pytest.mark.parametrize("make", [*FILTERS.values(), CenteredAttention])


@all_kinds
def test_a_value_bias_and_a_mask_of_pairs_are_the_hosts(kind):
    x, bias = torch.randn(B, N, WIDTH), {"vbias": True} if kind == "RelPosMHAXL" else {}
    host = models.build_layer(kind, **bias).float()
    pairs = torch.rand(B * HEADS, N, N) < 0.4
    pairs[:, :, 0] = False  # a row without any key is NaN in the host
    added = torch.randn(N, N).masked_fill(pairs[0], -torch.inf)
    for mask, ignored in [(pairs, None), (pairs[0], PADDING), (added, PADDING), (added, None)]:
        given = {"attn_mask": mask, "key_padding_mask": ignored}
        y = models.call_layer(host, x, **given)[0]
        assert_close(models.call_layer(attach(host, Plain), x, **given)[0], y)
        detach(host)


def test_positions_may_be_added_to_the_fused_logits():
    x, place = torch.randn(B, N, WIDTH), torch.randn(N, N)
    host = models.build_layer("regularMHA").float()
    for mask in (None, torch.randn(N, N)):
        expected = host(x, x, x, None if mask is None else mask.clone(), pos_embs=place)[0]
        assert_close(attach(copy.deepcopy(host), Plain)(x, x, x, mask, pos_embs=place)[0], expected)


@all_kinds
def test_a_filtered_layer_is_no_cross_attention(kind):
    x, module = torch.randn(B, N, WIDTH).double(), attach(models.build_layer(kind), Plain)
    same = module(x, x.clone(), x, pos_embs=models.relative_positions(module))[0]
    assert torch.equal(same, models.call_layer(module, x)[0])
    with pytest.raises(ValueError, match="called as cross-attention, which stays Plain"):
        module(x, x + 1, x + 1, pos_embs=models.relative_positions(module))


@all_kinds
def test_tokens_that_mix_the_future_are_refused(kind):
    with pytest.raises(ValueError, match=r"FeatScale at .* does not see"):
        attach(models.build(kind=kind, causal=True), tokens=FeatScale).encode(torch.randn(B, N, 7))
    attach(models.build(kind=kind, causal=True), tokens=LayerScale).encode(torch.randn(B, N, 7))


@all_kinds
@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
def test_output_map_and_gradients_are_the_dense_ones(kind, padding):
    x, stock = torch.randn(B, N, WIDTH).double().requires_grad_(), models.build_layer(kind)
    module = randomize(attach(copy.deepcopy(stock), LEARNED).double())
    valid = slice(None) if padding is None else ~padding

    def call(layer: nn.Module) -> list[Tensor]:
        y, H = models.call_layer(layer, x, key_padding_mask=padding, return_attn_weights=True)
        return [y[valid], H] if padding is None else [y[valid]]

    assert models.call_layer(module, x)[1] is None
    # speechbrain computes the softmax of relative positions in float32
    check_dense(module, stock, call, 1e-9 if kind == "regularMHA" else 1e-5, [x])


@all_kinds
@all_makers
def test_padding_is_truncation(kind, make):
    model, x = randomize(attach(models.build(kind=kind), make)), torch.randn(B, N, 7)
    other, short = x.clone(), int(models.NUM_FRAMES[1])
    other[1, short:] = 3.0
    y, replaced = (model.encode(frames, models.LENGTHS) for frames in (x, other))
    assert torch.equal(y[1, :short], replaced[1, :short])
    assert_close(y[1:, :short], model.encode(x[1:, :short], torch.ones(1)), rtol=1e-4, atol=1e-4)


@all_kinds
@all_makers
def test_a_causal_encoder_does_not_see_the_future(kind, make):
    model, x = randomize(attach(models.build(kind=kind, causal=True), make)), torch.randn(B, N, 7)
    later = x.clone()
    later[:, 6:] = torch.randn(B, N - 6, 7)
    y, other = model.encode(x), model.encode(later)
    assert_close(y[:, :6], other[:, :6], rtol=0, atol=1e-6)
    assert (y[:, 6:] - other[:, 6:]).abs().max() > 1e-2


@all_kinds
def test_rows_without_a_key_are_zero_and_leave_others_finite(kind):
    x, module = torch.randn(B, N, WIDTH).double(), attach(models.build_layer(kind), FILTERS["gfsa"])
    padding = torch.zeros(B, N, dtype=torch.uint8)
    padding[1] = 1
    y = models.call_layer(module, x, key_padding_mask=padding)[0]
    y.sum().backward()
    assert_close(y[0], models.call_layer(module, x[:1])[0][0])
    pairs = torch.zeros(N, N).double().index_fill(0, torch.tensor([2]), -torch.inf)
    given = models.call_layer(module, x, attn_mask=pairs)[0]
    given.sum().backward()
    assert y.isfinite().all()
    assert given.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.requires_grad)


@all_kinds
def test_tokens_follow_the_projection_and_see_no_padding(kind):
    stock, x, short = models.build(kind=kind), torch.randn(B, N, 7), int(models.NUM_FRAMES[1])
    model = attach(copy.deepcopy(stock), tokens=partial(FeatScale, gain=1))
    names = [name for name, _ in model.named_modules() if name.endswith("tokens")]
    assert len(names) == DEPTH
    assert all(name.startswith("encoder.") for name in names)
    randomize(model, "tokens")
    y, truncated = model.encode(x, models.LENGTHS), model.encode(x[1:, :short], torch.ones(1))
    assert_close(y[1:, :short], truncated, rtol=1e-4, atol=1e-4)
    assert (y - stock.encode(x, models.LENGTHS)).abs().max() > 1e-2
