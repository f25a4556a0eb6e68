"""CaiT and Swin: timm bit for bit with Plain, the literal filter on their own maps otherwise."""

import copy
from functools import partial

import pytest
import timm
import torch
from attention_core import (
    AGF,
    GFSA,
    AttnScale,
    CenteredAttention,
    FeatScale,
    LayerScale,
    Plain,
    attach,
    detach,
    spectral,
)
from attention_core.attach import Filtered
from timm.models.cait import ClassAttn
from torch import Tensor, nn
from torch.testing import assert_close

FAMILIES = {
    "deit": ("deit_tiny_patch16_224", {"depth": 3}),
    "cait": ("cait_xxs24_224", {"depth": 3, "init_values": 0.5}),
    "swin": ("swin_tiny_patch4_window7_224", {"window_size": 4, "depths": (2, 2)}),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def build(family: str) -> nn.Module:
    name, options = FAMILIES[family]
    model = timm.create_model(name, num_classes=5, img_size=48, **options).eval()
    for weight in model.parameters():  # timm's own are too small for an output to show a fault
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.1)
    return model


def filtered(model: nn.Module) -> list:
    return [module for module in model.modules() if isinstance(module, Filtered)]


def operands(model: nn.Module, x: Tensor) -> list[tuple]:
    """What every filter is called with, and what it answers."""
    seen: list[tuple] = []
    for module in filtered(model):
        module.filter.register_forward_hook(lambda m, inputs, output: seen.append((inputs, output)))
    model(x)
    return seen


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 48, 48)


@each_family
def test_plain_is_timm_bit_for_bit_and_takes_its_weights(x, family, tmp_path):
    stock = build(family)
    ours = attach(copy.deepcopy(stock), Plain)
    assert torch.equal(ours(x), stock(x))
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    name, options = FAMILIES[family]
    loaded = timm.create_model(
        name, num_classes=5, img_size=48, checkpoint_path=tmp_path / "stock.pth", **options
    ).eval()
    assert torch.equal(attach(loaded, GFSA)(x), stock(x))


@each_family
def test_fused_and_unfused_hosts_agree(x, family):
    model = attach(build(family), partial(GFSA, wK=0.4))
    before = model(x)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = not module.fused_attn
    assert_close(model(x), before, rtol=1e-4, atol=1e-5)


def test_class_attention_stays_plain():
    model = attach(build("cait"), GFSA)
    assert {type(block.attn) for block in model.blocks_token_only} == {ClassAttn}
    assert len(filtered(model)) == 3


@pytest.mark.parametrize("family", ["cait", "swin"])
def test_a_filter_is_the_literal_one_of_the_hosts_own_map(x, family):
    model = attach(build(family).double(), partial(GFSA, K=4, w0=0.2, wK=0.3))
    for ((A, v), Hv), module in zip(operands(model, x.double()), filtered(model), strict=True):
        A = spectral.matrix(Plain(), A)
        H = 0.2 * torch.eye(A.shape[-1]) + A + 0.3 * (A + 3 * (A @ A - A))
        assert_close(Hv, H.double() @ v)
        assert module.filter.wK.shape == (module.num_heads,)


def test_the_heads_of_cait_are_mixed_before_the_filter(x):
    maps = [A for (A, _), _ in operands(attach(build("cait"), Plain), x)]
    assert all((A.sum(-1) - 1).abs().max() > 0.1 and A.min() < 0 for A in maps)


def shifted(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The H of a shifted window attention, (B, windows, H, N, N), and its allowed pairs."""
    block = model.layers[0].blocks[1]
    mask = block.attn_mask
    ((A, _), _) = operands(model, x)[1]
    H = spectral.matrix(block.attn.filter, A)
    return H.view(len(x), len(mask), *H.shape[1:]), (mask == 0)[None, :, None]


@pytest.mark.parametrize("make", [partial(GFSA, wK=0.7), CenteredAttention, AttnScale])
def test_a_shifted_window_keeps_to_its_regions(x, make):
    model = attach(build("swin"), make)
    for weight in (p for m in filtered(model) for p in m.filter.parameters()):
        nn.init.constant_(weight, 0.7)
    H, allowed = shifted(model, x)
    assert not allowed.all()
    assert H.masked_select(~allowed.expand_as(H)).abs().max() < 1e-12
    assert H.masked_select(allowed.expand_as(H)).abs().max() > 1e-3


def test_attnscale_leaks_as_published_on_demand(x):
    model = attach(build("swin"), partial(AttnScale, masked=False))
    omega = model.layers[0].blocks[1].attn.filter.omega
    nn.init.constant_(omega, 0.7)
    H, allowed = shifted(model, x)
    assert_close(H.masked_select(~allowed.expand_as(H)).max(), torch.tensor(-0.7 / 16))


COUNTS = {
    "deit_small_patch16_224": (22_050_664, 72, 9_216),
    "deit_small_patch16_224-24": (43_344_232, 144, 18_432),
    "cait_xxs24_224": (11_956_264, 96, 9_216),
    "cait_s24_224": (46_916_200, 192, 18_432),
    "swin_small_patch4_window7_224": (49_606_258, 282, 18_048),
}


@pytest.mark.parametrize(("name", "counts"), COUNTS.items(), ids=COUNTS)
def test_extra_parameters_are_those_of_the_papers(name, counts):
    def count() -> int:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    name, _, depth = name.partition("-")
    with torch.device("meta"):
        model = timm.create_model(name, **({"depth": int(depth)} if depth else {}))
    stock, heads, channels = counts
    assert count() == stock
    for make in (GFSA, AttnScale):
        assert count.__call__() == stock
        assert sum(1 for _ in filtered(attach(model, make))) in (12, 24)
        assert count() - stock == heads
        detach(model)
    attach(model, tokens=FeatScale)
    assert count() - stock == channels


@pytest.mark.parametrize("family", ["cait", "swin"])
def test_a_kernel_has_no_place_where_heads_or_windows_make_the_map(family):
    model = build(family)
    with pytest.raises(ValueError, match="has no place for a kernel"):
        attach(model, kernel=AGF)
    assert not filtered(model)


@each_family
def test_a_gradient_reaches_every_coefficient(x, family):
    model = attach(build(family), GFSA, tokens=partial(LayerScale, init=1.0), position="branches")
    model.train()(x).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not silent
    assert all(module.filter.wK.grad.all() for module in filtered(model))


@each_family
def test_detach_restores_timm(x, family):
    model = build(family)
    before, keys = model(x), list(model.state_dict())
    attach(model, partial(GFSA, wK=1.0), tokens=partial(LayerScale, init=0.3))
    assert (model(x) - before).abs().max() > 1e-3
    assert torch.equal(detach(model)(x), before)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("family", ["cait", "swin"])
def test_it_compiles_whole(x, family):
    model = attach(build(family), GFSA, tokens=FeatScale)
    block = model.blocks[0] if family == "cait" else model.layers[0].blocks[1]
    tokens = torch.randn(2, 9, 192) if family == "cait" else torch.randn(2, 12, 12, 96)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert_close(compiled(tokens), block(tokens))
