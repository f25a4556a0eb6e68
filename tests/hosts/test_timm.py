"""ViT, DeiT, CaiT and Swin of timm: the same model with Plain, the reference filter otherwise."""

import copy
from functools import partial

import pytest
import torch
from attention_core import AGF, EigenSpectrum, attach, spectral
from attention_core.filters import GFSA, AttnScale, CenteredAttention, Plain, Polynomial
from attention_core.tokens import FeatScale, LayerScale
from timm.layers.attention import Attention
from timm.models.cait import ClassAttn
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core import reference
from tests.hosts.helpers import filters, find_untrained, record_calls
from tests.hosts.timm_models import FAMILIES, SIZE, build

all_families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE)


def test_a_gated_layer_is_timms_bit_for_bit():
    options = {"qk_norm": True, "scale_norm": True, "gated": True, "norm_layer": nn.LayerNorm}
    stock, tokens = Attention(12, 4, attn_head_dim=5, **options), torch.randn(2, 7, 12)
    ours = attach(copy.deepcopy(stock), Plain)
    assert torch.equal(ours(tokens), stock(tokens))
    mask = torch.rand(2, 1, 7, 7) < 0.7
    assert torch.equal(ours(tokens, mask), stock(tokens, mask))
    assert torch.equal(ours(tokens, is_causal=True), stock(tokens, is_causal=True))


@pytest.mark.parametrize("family", ["cait", "swin"])
def test_a_filter_is_the_reference_on_the_hosts_own_map(x, family):
    model = attach(build(family).double(), partial(GFSA, K=4, w0=0.2, wK=0.3))
    calls = record_calls(filters(model), lambda: model(x.double()))
    for ((A, v), Hv), filter in zip(calls, filters(model), strict=True):
        weights = [w.view(-1, 1, 1) for w in (filter.w0, filter.w1, filter.wK)]
        H = reference.gfsa(spectral.matrix(Plain(), A), None, weights, 4)
        assert_close(Hv, H.double() @ v)


@all_families
def test_fused_and_unfused_hosts_agree(x, family):
    model = attach(build(family), partial(GFSA, wK=0.4))
    before = model(x)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = not module.fused_attn
    assert_close(model(x), before, rtol=1e-4, atol=1e-5)


def test_a_second_filter_is_refused():
    model = attach(build(), GFSA, ":1")
    with pytest.raises(ValueError, match="has a filter already"):
        attach(model, GFSA)
    assert len(filters(model)) == 1
    assert len(filters(attach(model, GFSA, "1:"))) == 3


def test_a_quantised_model_is_filtered_but_not_reparameterised(x):
    quantised = torch.ao.quantization.quantize_dynamic(build(), {nn.Linear})
    before = quantised(x)
    with pytest.raises(ValueError, match="has quantised projections"):
        attach(quantised, reparam=EigenSpectrum)
    assert torch.equal(attach(quantised, GFSA)(x), before)
    nn.init.constant_(quantised.blocks[0].attn.filter.wK, 2.0)
    assert not torch.equal(quantised(x), before)


def test_what_has_no_place_is_refused():
    for family in ("cait", "swin"):  # mixed heads, and windows
        with pytest.raises(ValueError, match="has no place for a kernel"):
            attach(build(family), kernel=AGF)
    with pytest.raises(ValueError, match="has no square projections to reparameterise"):
        attach(nn.Sequential(Attention(12, 3), Attention(12, 3, dim_out=24)), reparam=EigenSpectrum)


@pytest.mark.parametrize("training", [True, False])
def test_filters_follow_the_mode_and_the_device_of_their_host(training):
    model = attach(build().train(training).to("meta"), GFSA)
    assert {filter.training for filter in filters(model)} == {training}
    assert {w.device.type for filter in filters(model) for w in filter.parameters()} == {"meta"}


def test_dropout_follows_timm(x):
    model = attach(build(attn_drop_rate=0.5), GFSA)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@all_families
@pytest.mark.parametrize("make", [Plain, GFSA, AttnScale, partial(Polynomial, K=4, basis="jacobi")])
def test_a_gradient_reaches_every_coefficient(x, make, family):
    model = attach(build(family), make, tokens=partial(LayerScale, init=1.0))
    model.train()(x).square().sum().backward()
    weights = [w for filter in filters(model) for w in filter.parameters() if w.requires_grad]
    assert all(w.grad.isfinite().all() and w.grad.all() for w in weights)
    assert not find_untrained(model)


@pytest.mark.parametrize("family", ["cait", "swin"])
def test_it_compiles_whole(family):
    model = attach(build(family), GFSA, tokens=FeatScale)
    block = model.blocks[0] if family == "cait" else model.layers[0].blocks[1]
    tokens = torch.randn(2, 9, 192) if family == "cait" else torch.randn(2, 12, 12, 96)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert_close(compiled(tokens), block(tokens))


def test_cait_mixes_heads_before_the_filter_and_leaves_class_attention_plain(x):
    model = attach(build("cait"), Plain)
    assert {type(block.attn) for block in model.blocks_token_only} == {ClassAttn}
    maps = [A for (A, _), _ in record_calls(filters(model), lambda: model(x))]
    assert all((A.sum(-1) - 1).abs().max() > 0.1 and A.min() < 0 for A in maps)
    assert attach(build("cait"), GFSA)(x[:0]).shape == (0, 5)  # a batch without images


def shifted_map(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the H of a shifted window attention, (B, windows, H, N, N), and its allowed pairs."""
    block = model.layers[0].blocks[1]
    ((A, _), _) = record_calls(filters(model), lambda: model(x))[1]
    H, mask = spectral.matrix(block.attn.filter, A), block.attn_mask
    return H.view(len(x), len(mask), *H.shape[1:]), (mask == 0)[None, :, None]


@pytest.mark.parametrize("make", [partial(GFSA, wK=0.7), CenteredAttention, AttnScale])
def test_a_shifted_window_keeps_to_its_regions(x, make):
    model = attach(build("swin"), make)
    for weight in nn.ModuleList(filters(model)).parameters():
        nn.init.constant_(weight, 0.7)
    H, allowed = shifted_map(model, x)
    assert not allowed.all()
    assert H.masked_select(~allowed.expand_as(H)).abs().max() < 1e-12
    assert H.masked_select(allowed.expand_as(H)).abs().max() > 1e-3


def test_attnscale_leaks_as_published_on_demand(x):
    model = attach(build("swin"), partial(AttnScale, masked=False))
    nn.init.constant_(model.layers[0].blocks[1].attn.filter.omega, 0.7)
    H, allowed = shifted_map(model, x)
    assert_close(H.masked_select(~allowed.expand_as(H)).max(), torch.tensor(-0.7 / 16))
