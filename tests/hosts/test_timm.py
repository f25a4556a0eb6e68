"""ViT, DeiT, CaiT and Swin of timm: filters, functions of tokens, kernels, reparameterisations."""

import copy
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from attention_core import AGF, EigenSpectrum, attach, detach, spectral
from attention_core.filters import GFSA, AttnScale, CenteredAttention, Plain, dropout_on_H
from attention_core.hosts.hook_points import find_positions
from attention_core.tokens import ContraNorm, FeatScale, LayerScale
from timm.layers.attention import Attention
from timm.models.swin_transformer_v2 import WindowAttention
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core import reference
from tests.hosts.helpers import filtered_modules, filters, randomize, record_calls
from tests.hosts.timm_models import FAMILIES, SIZE, build

CONTRAST = partial(ContraNorm, scale=0.3, norm=False)
SHARP = partial(EigenSpectrum, kind="sharpening", init="orthogonal")


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
    calls = record_calls(filters(model), partial(model, x.double()))
    for ((A, v), Hv), filter in zip(calls, filters(model), strict=True):
        weights = [w.view(-1, 1, 1) for w in (filter.w0, filter.w1, filter.wK)]
        assert_close(Hv, reference.gfsa(spectral.matrix(Plain(), A), None, weights, 4).double() @ v)


def test_dropout_on_h_takes_the_place_of_that_on_the_map(x):
    change = {"filter": lambda num_heads: dropout_on_H(GFSA(num_heads))}
    for family, fused in (("cait", True), ("swin", True), ("swin", False)):
        model = attach(build(family, attn_drop_rate=0.5).double(), **change).train()
        for module in filtered_modules(model).values():
            module.fused_attn = fused
        for (A, identity), _ in record_calls(filters(model), partial(model, x.double())):
            assert A.rate == 0.5
            assert (A @ identity).all()
    forming = attach(WindowAttention(12, (2, 3), 3, attn_drop=0.5), **change)
    with pytest.raises(ValueError, match="dropout_on_H cannot act"):
        forming(torch.randn(4, 6, 12))


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_and_unfused_hosts_agree(x, family):
    model = attach(build(family), partial(GFSA, wK=0.4))
    before = model(x)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = not module.fused_attn
    assert_close(model(x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("slots", "reason"), [
    ({"make_filter": GFSA}, "has a filter already"),
    ({"tokens": FeatScale}, "has tokens already"),
    ({"reparam": SHARP}, "has a reparameterised projection already"),
])  # fmt: skip
def test_a_taken_place_is_refused_and_the_others_are_free(slots, reason):
    model = attach(build(), **slots, layers=":1")
    with pytest.raises(ValueError, match=reason):
        attach(model, **slots)
    assert len(filters(attach(model, **slots, layers="1:"))) in (0, 3)


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


def test_norms_are_counted_without_those_of_queries_and_keys_and_after_pooling(x):
    for family in ("vit", "qk_norm"):
        (norms,) = find_positions(build(family), "norms")
        assert len(norms) == 2 * 3 + 1
    model = attach(build(), tokens=CONTRAST, position="norms", layers="6:")
    assert [name for name, _ in model.named_modules() if name.endswith("tokens")] == ["norm.tokens"]
    assert not filtered_modules(model)
    model = timm.create_model("vit_tiny_patch16_224", img_size=SIZE, depth=2, global_pool="avg")
    assert len(find_positions(model, "norms")[0]) == 2 * 2  # fc_norm is left out
    attach(model, tokens=CONTRAST, position="norms")(x)
    with pytest.raises(ValueError, match=r"needs tokens \(batch, tokens, channels\), got \(2, 192"):
        attach(build(), tokens=CONTRAST, position="norms").blocks[0].norm1(torch.randn(2, 192))


def test_contranorm_before_a_norm_is_the_published_module(x):
    model, z = attach(build(), tokens=CONTRAST, position="norms"), torch.randn(2, 7, 192)
    unit = F.normalize(z, dim=-1)
    expected = z - 0.3 * (unit @ unit.mT).softmax(-1) @ z
    assert_close(model.blocks[1].norm2(z), F.layer_norm(expected, (192,), eps=1e-6))
    assert list(model.state_dict()) == list(attach(build()).state_dict())  # no parameter is new


def test_featscale_sees_a_mask_of_keys_and_refuses_others():
    """With timm's own mask, of pairs: a query that is padding sees nothing, or what others see."""
    model = randomize(attach(build(), tokens=partial(FeatScale, gain=1)), "tokens").double()
    block, z = model.blocks[0], torch.randn(2, 7, 192).double()
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, 5:] = False
    keys = valid[:, None, None, :]
    for mask in (keys, keys.expand(-1, -1, 7, -1).clone(), keys & keys.mT):
        assert_close(block(z, attn_mask=mask)[1:, :5], block(z[1:, :5]))
    with pytest.raises(ValueError, match="keeps tokens apart that FeatScale would mix"):
        block(z, attn_mask=torch.ones(7, 7, dtype=torch.bool).tril())
    with pytest.raises(ValueError, match="FeatScale would leak future tokens"):
        block(z, is_causal=True)
    attach(build(), tokens=LayerScale).double().blocks[0](z, is_causal=True)


@pytest.mark.parametrize("position", ["branches", "norms"])
def test_tokens_that_see_no_mask_refuse_one(position):
    model = attach(build(), tokens=partial(ContraNorm, scale=0.1), position=position)
    with pytest.raises(ValueError, match=f"position '{position}' does not see attn_mask"):
        model.blocks[0](torch.randn(2, 7, 192), attn_mask=torch.ones(7, 7, dtype=torch.bool))
    detach(model).blocks[0](torch.randn(2, 7, 192), attn_mask=torch.ones(7, 7, dtype=torch.bool))


@pytest.mark.parametrize("position", ["attention", "window"])
def test_featscale_of_swin_averages_the_stage_or_the_window(position):
    block = attach(build("swin"), tokens=FeatScale, position=position).layers[0].blocks[1]
    tokens = block.drop_path1.tokens if position == "attention" else block.attn.tokens
    (((seen,), _),) = record_calls([tokens], lambda: block(torch.randn(2, 12, 12, 96)))
    assert seen.shape == ((2, 144, 96) if position == "attention" else (2 * 9, 16, 96))


def test_a_hook_on_the_dropout_of_the_map_sees_h(x):
    model = attach(build(), partial(GFSA, wK=0.3))
    ((_, H),) = record_calls([model.blocks[1].attn.attn_drop], lambda: model(x))
    assert_close(H.sum(-1), torch.full(H.shape[:-1], 1.3))


def test_a_kernel_is_never_silently_causal():
    with pytest.raises(ValueError, match="is bidirectional"):
        attach(build(), kernel=AGF).blocks[0].attn(torch.randn(1, 5, 192), is_causal=True)
