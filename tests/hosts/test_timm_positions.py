"""Functions of tokens, of weights, of queries and keys, each at its position in a timm model."""

import copy
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from attention_core import (
    AGF,
    GFSA,
    ContraNorm,
    EigenSpectrum,
    FeatScale,
    LayerScale,
    attach,
    detach,
    penalties,
)
from attention_core.hook_points import find_positions
from torch import Tensor, nn
from torch.testing import assert_close

CONTRAST = partial(ContraNorm, scale=0.3, norm=False)
SHARP = partial(EigenSpectrum, kind="sharpening", init="orthogonal")


def vit(**options) -> nn.Module:
    options = {"img_size": 32, "patch_size": 8, "depth": 3, "num_classes": 5} | options
    model = timm.create_model("deit_tiny_patch16_224", **options).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.1)
    return model


def swin() -> nn.Module:
    name = "swin_tiny_patch4_window7_224"
    return timm.create_model(name, img_size=32, window_size=4, depths=(2, 2)).eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def test_contranorm_takes_the_place_of_every_norm():
    (norms,) = find_positions(vit(), "norms")
    assert len(norms) == 2 * 3 + 1
    (with_inner,) = find_positions(vit(qk_norm=True), "norms")
    assert len(with_inner) == 2 * 3 + 1  # those of queries and keys see no tokens


def test_contranorm_before_a_norm_is_the_published_module(x):
    model, z = attach(vit(), tokens=CONTRAST, position="norms"), torch.randn(2, 7, 192)
    unit = F.normalize(z, dim=-1)
    literal = z - 0.3 * (unit @ unit.mT).softmax(-1) @ z
    block = model.blocks[1]
    assert_close(block.norm2(z), F.layer_norm(literal, (192,), eps=1e-6))
    assert len([name for name, _ in model.named_modules() if name.endswith("tokens")]) == 7
    assert list(model.state_dict()) == list(attach(vit()).state_dict())  # no parameter is new


def test_featscale_follows_the_projection(x):
    stock = vit()
    ours = attach(copy.deepcopy(stock), tokens=FeatScale, layers="1:2")
    tokens = ours.blocks[1].attn.tokens
    nn.init.normal_(tokens.s), nn.init.normal_(tokens.t)
    z, block = torch.randn(2, 7, 192), stock.blocks[1]
    out = block.attn(block.norm1(z))
    mean = out.mean(1, keepdim=True)
    scaled = z + mean * (1 + tokens.s) + (out - mean) * (1 + tokens.t)
    expected = scaled + block.mlp(block.norm2(scaled))
    assert_close(ours.blocks[1](z), expected)
    assert torch.equal(ours.blocks[0](z), stock.blocks[0](z))


@pytest.mark.parametrize(("position", "dims"), [("attention", (1, 2)), ("window", (1,))])
def test_featscale_of_swin_averages_the_stage_or_the_window(position, dims):
    model = attach(swin(), tokens=FeatScale, position=position)
    block = model.layers[0].blocks[1]
    tokens = block.drop_path1.tokens if position == "attention" else block.attn.tokens
    seen = []
    tokens.register_forward_hook(lambda m, inputs, output: seen.append(inputs[0]))
    block(torch.randn(2, 8, 8, 96))
    assert seen[0].shape == ((2, 64, 96) if position == "attention" else (2 * 4, 16, 96))


def test_layerscale_sits_on_both_branches():
    stock, z = vit(), torch.randn(2, 7, 192)
    block = attach(copy.deepcopy(stock), tokens=partial(LayerScale, init=0.5), position="branches")
    first = stock.blocks[0]
    half = z + 0.5 * first.attn(first.norm1(z))
    assert_close(block.blocks[0](z), half + 0.5 * first.mlp(first.norm2(half)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokens": FeatScale, "position": "head"}, "position must be one of attention, window"),
        (
            {"tokens": FeatScale, "position": "window"},
            "has no place for tokens at position 'window'",
        ),
        ({"tokens": FeatScale, "layers": "7:"}, "names none of the 3 layers"),
        ({"make_filter": lambda heads: GFSA(heads, K=0)}, "order K must be"),
        ({"reparam": partial(EigenSpectrum, kind="cold")}, "kind"),
    ],
)
def test_a_refusal_leaves_the_model_as_it_was(x, options, sentence):
    model = vit()
    before = model(x)
    with pytest.raises(ValueError, match=sentence):
        attach(model, **options)
    assert {type(block.attn).__name__ for block in model.blocks} == {"Attention"}
    assert torch.equal(model(x), before)


def test_a_taken_position_is_refused():
    model = attach(vit(), tokens=FeatScale, layers=":1")
    with pytest.raises(ValueError, match="has tokens already"):
        attach(model, tokens=FeatScale)
    attach(model, tokens=FeatScale, layers="1:")


def test_a_kernel_takes_the_place_of_softmax(x):
    model = attach(vit(), kernel=partial(AGF, K=2, gamma=0.5), layers="-1:")
    agf = model.blocks[2].attn.kernel
    with penalties(model) as terms:
        out = model(x)
    assert len(terms) == 1
    nn.init.normal_(agf.theta)
    assert (model(x) - out).abs().max() > 1e-3
    assert not hasattr(model.blocks[0].attn, "kernel")


def test_eigenvalues_take_away_the_projections_parameters():
    options = {"img_size": 32, "patch_size": 2, "qkv_bias": False, "num_classes": 100}
    model = timm.create_model("vit_tiny_patch16_224", **options)
    count = lambda: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert count() == 5_403_172
    attach(model, reparam=SHARP)
    assert count() == 4_963_108


def test_a_reparameterised_model_is_copied_saved_and_detached(x):
    model = attach(vit(), reparam=SHARP)
    before = model(x)
    clone = copy.deepcopy(model)
    assert torch.equal(clone(x), before)
    with torch.no_grad():
        clone.blocks[0].attn.qkv.weight.mul_(2)
    assert torch.equal(model(x), before)
    fresh = attach(vit(), reparam=SHARP)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), before)
    assert_close(detach(model)(x), before)
    assert sorted(model.state_dict()) == sorted(vit().state_dict())


def test_every_slot_at_once_compiles_and_trains(x):
    model = attach(
        vit(), GFSA, "1::2", kernel=partial(AGF, K=2), tokens=FeatScale, reparam=SHARP
    ).train()
    compiled = torch.compile(model.blocks[1], fullgraph=True, backend="aot_eager")
    z = torch.randn(2, 7, 192)
    assert_close(compiled(z), model.blocks[1](z))
    model(x).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not silent


def test_norms_are_counted_by_themselves():
    model = attach(vit(), tokens=CONTRAST, position="norms", layers="6:")
    assert [name for name, _ in model.named_modules() if name.endswith("tokens")] == ["norm.tokens"]
    assert {type(block.attn).__name__ for block in model.blocks} == {"Attention"}


def test_a_kernel_is_never_silently_causal():
    attention = attach(vit(), kernel=AGF).blocks[0].attn
    with pytest.raises(ValueError, match="is bidirectional"):
        attention(torch.randn(1, 5, 192), is_causal=True)


def test_a_reparameterised_layer_is_not_taken_twice():
    model = attach(vit(), reparam=SHARP)
    with pytest.raises(ValueError, match="has a reparameterised projection already"):
        attach(model, GFSA, reparam=SHARP)
