"""Vision transformers of timm: the same model with Plain, the same checkpoint with any filter."""

import copy
import io

import pytest
import timm
import torch
from attention_core import (
    GFSA,
    AttnScale,
    CenteredAttention,
    EigenSpectrum,
    Plain,
    Polynomial,
    attach,
    detach,
)
from attention_core.hosts.timm import FilteredAttention
from timm.layers.attention import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.testing import assert_close

SMALL = {"img_size": 32, "patch_size": 8, "depth": 3, "num_classes": 5, "pretrained": False}
OPTIONS = {
    "vit": {},
    "deit": {"name": "deit_tiny_distilled_patch16_224"},
    "qk_norm": {"qk_norm": True},
    "scale_norm": {"scale_attn_norm": True},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
IDENTITIES = {
    "plain": Plain,
    "gfsa": GFSA,
    "attnscale": AttnScale,
    "polynomial": lambda heads: Polynomial(heads, K=4, basis="jacobi"),
}
each_filter = pytest.mark.parametrize("make", IDENTITIES.values(), ids=IDENTITIES)


def vit(name: str = "vit_tiny_patch16_224", **options) -> VisionTransformer:
    model = timm.create_model(name, **SMALL | options).eval()
    for weight in model.parameters():  # timm's own are too small for an output to show a fault
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.1)
    return model


def filters(model: nn.Module) -> list[nn.Module]:
    return [m.filter for m in model.modules() if isinstance(m, FilteredAttention)]


def scramble(model: nn.Module) -> nn.Module:
    for filter in filters(model):
        for weight in filter.parameters():
            nn.init.normal_(weight)
    return model


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


@each_option
def test_plain_is_timm_bit_for_bit(x, options):
    stock = vit(**options)
    ours = attach(copy.deepcopy(stock), Plain)
    assert len(filters(ours)) == 3
    assert torch.equal(ours(x), stock(x))


def test_a_gated_layer_is_timms_bit_for_bit():
    options = {"qk_norm": True, "scale_norm": True, "gated": True, "norm_layer": nn.LayerNorm}
    stock, tokens = Attention(12, 4, attn_head_dim=5, **options), torch.randn(2, 7, 12)
    ours = attach(copy.deepcopy(stock), Plain)
    assert torch.equal(ours(tokens), stock(tokens))
    mask = torch.rand(2, 1, 7, 7) < 0.7
    assert torch.equal(ours(tokens, mask), stock(tokens, mask))
    assert torch.equal(ours(tokens, is_causal=True), stock(tokens, is_causal=True))


@each_option
@each_filter
def test_every_identity_starts_as_timm(x, make, options):
    stock = vit(**options)
    assert_close(attach(copy.deepcopy(stock), make)(x), stock(x), rtol=1e-4, atol=1e-5)


def test_a_filter_changes_the_output(x):
    stock = vit()
    for make in (GFSA, AttnScale, Polynomial):
        ours = scramble(attach(copy.deepcopy(stock), make))
        assert (ours(x) - stock(x)).abs().max() > 1e-2
    assert (attach(copy.deepcopy(stock), CenteredAttention)(x) - stock(x)).abs().max() > 1e-2


@pytest.mark.parametrize(("layers", "chosen"), [(":", [0, 1, 2]), ("1::2", [1]), ("-2:", [1, 2])])
def test_layers_are_a_slice(layers, chosen):
    model = attach(vit(), GFSA, layers)
    assert [
        i for i, b in enumerate(model.blocks) if isinstance(b.attn, FilteredAttention)
    ] == chosen


def test_refusals():
    with pytest.raises(ValueError, match="'6:' names none of the 3 layers"):
        attach(vit(), GFSA, "6:")
    with pytest.raises(ValueError, match=r"in ResNet: looked for timm\.layers\."):
        attach(timm.create_model("test_resnet"), GFSA)
    model = attach(vit(), GFSA, ":1")
    with pytest.raises(ValueError, match="has a filter already"):
        attach(model, GFSA)
    assert len(filters(model)) == 1
    assert len(filters(attach(model, GFSA, "1:"))) == 3


def test_what_is_refused_at_the_second_layer_leaves_the_first_as_it_was():
    model = nn.Sequential(Attention(12, 3), Attention(12, 3, dim_out=24))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="has no square projections to reparameterise"):
        attach(model, GFSA, reparam=EigenSpectrum)
    assert {type(layer) for layer in model} == {Attention}
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_cait_takes_no_images_at_all():
    model = attach(timm.create_model("cait_xxs24_224", img_size=32, depth=1), GFSA).eval()
    assert model(torch.randn(0, 3, 32, 32)).shape == (0, 1000)


def test_a_stock_checkpoint_misses_the_filters_alone(x):
    stock, ours = vit(), attach(vit(), GFSA)
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert not unexpected
    names = {f"blocks.{i}.attn.filter.{w}" for i in range(3) for w in ("w0", "w1", "wK")}
    assert set(missing) == names
    assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)


def test_detach_restores_timm(x):
    model = vit()
    before, keys = model(x), list(model.state_dict())
    detach(scramble(attach(model, GFSA)))
    assert {type(block.attn) for block in model.blocks} == {Attention}
    assert list(model.state_dict()) == keys
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("training", [True, False])
def test_filters_follow_the_mode_of_their_host(training):
    model = attach(vit().train(training), lambda heads: Noisy())
    assert {filter.training for filter in filters(model)} == {training}


class Noisy(nn.Dropout):
    """A filter that betrays its mode."""

    def forward(self, A, v):
        return super().forward(A @ v)


def test_an_evaluated_host_evaluates_its_filters(x):
    stock = vit()
    assert torch.equal(attach(copy.deepcopy(stock), lambda heads: Noisy(0.5))(x), stock(x))


def test_copies_and_checkpoints_keep_the_filters(x):
    model = scramble(attach(vit(), GFSA))
    clone = copy.deepcopy(model)
    assert torch.equal(clone(x), model(x))
    scramble(clone)
    assert not torch.equal(clone(x), model(x))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    clone.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(clone(x), model(x))


def test_a_filter_is_built_where_its_host_is():
    model = attach(vit().to("meta"), GFSA)
    assert {w.device.type for filter in filters(model) for w in filter.parameters()} == {"meta"}


@pytest.mark.parametrize(("name", "extra"), [("deit_small_patch16_224", 72)])
def test_extra_parameters_are_heads_times_layers(name, extra):
    def count() -> int:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    with torch.device("meta"):
        model = timm.create_model(name)
    stock = count()
    assert stock == 22_050_664
    attach(model, GFSA)
    assert count() - stock == extra
    attach(detach(model), AttnScale)
    assert count() - stock == extra


@each_filter
def test_a_gradient_reaches_every_coefficient(x, make):
    model = attach(vit(), make).train()
    model(x).square().sum().backward()
    weights = [w for filter in filters(model) for w in filter.parameters() if w.requires_grad]
    assert all(w.grad.isfinite().all() and w.grad.all() for w in weights)
    silent = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not silent


def test_dropout_follows_timm(x):
    model = attach(vit(attn_drop_rate=0.5), GFSA)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))
