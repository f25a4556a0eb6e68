"""Modules that call torch's attention, or form their map by a softmax: filtered, exactly."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from attention_core import GFSA, SelfAttention, Softmax, attach, detach
from attention_core.hosts.generic import find_generic_adapter
from attention_core.hosts.known_classes import CALLING_CLASSES, FORMING_CLASSES
from timm import models
from timm.layers import attention, attention2d, bottleneck_attn
from torch import Tensor, nn
from torch.testing import assert_close
from torchaudio.models.wav2vec2 import components
from torchvision.models import maxvit, swin_transformer

from tests.core.reference import gfsa
from tests.hosts.helpers import (
    OwnAttention,
    build_double,
    check_identity_and_detach,
    filtered_modules,
    randomize,
    replace_maps,
    share_weights,
)

TOKENS, IMAGE, MAP, WINDOW = (2, 10, 12), (2, 12, 3, 5), (2, 4, 6, 12), (2, 3)
Modules = dict[Callable[[], nn.Module], tuple[int, ...]]
# a small module for each class, and the shape of its input
CALLING: Modules = {
    partial(attention.AttentionRope, 12, 3): TOKENS,
    partial(attention.AttentionRope, 12, 6, num_kv_heads=2, qkv_fused=False): TOKENS,
    partial(attention2d.MultiQueryAttention2d, 12, num_heads=3): IMAGE,
    partial(models.beit.Attention, 12, 3, window_size=(3, 3)): TOKENS,
    partial(models.cpubone.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(models.davit.WindowAttention, 12, (2, 5), 3): TOKENS,
    partial(models.eva.EvaAttention, 12, 3, scale_norm=False): TOKENS,
    partial(models.fastvit.Attention, 12, head_dim=4): IMAGE,
    partial(models.gemma4_vit.Gemma4Attention, 12, 6, 4, num_kv_heads=3): TOKENS,
    partial(models.hiera.MaskUnitAttention, 12, 12, 3): TOKENS,
    partial(models.hiera.MaskUnitAttention, 12, 12, 3, 1, 5, use_mask_unit_attn=True): (2, 15, 12),
    partial(models.hieradet_sam2.MultiScaleAttention, 12, 12, 3): MAP,
    partial(models.lowformer.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(models.maxxvit.Attention2d, 12, dim_head=4): IMAGE,
    partial(models.maxxvit.AttentionCl, 12, dim_head=4): MAP,
    partial(models.metaformer.Attention, 12, head_dim=4): TOKENS,
    partial(models.nest.Attention, 12, 3): (2, 5, 7, 12),
    partial(models.nextvit.EfficientAttention, 12, head_dim=4): TOKENS,
    partial(models.tiny_vit.Attention, 12, 4, 3, 1, resolution=(2, 5)): TOKENS,
    partial(models.twins.LocallyGroupedAttn, 12, 3, ws=2): (2, 24, 12),
    partial(models.twins.GlobalSubSampleAttn, 12, 3): TOKENS,
    partial(models.pvt_v2.Attention, 12, 3): TOKENS,
    partial(models.vision_transformer.ParallelScalingBlock, 12, 3): TOKENS,
    partial(models.vision_transformer_relpos.RelPosAttention, 12, 3): TOKENS,
    partial(models.vision_transformer_sam.Attention, 12, 3): MAP,
    partial(models.visformer.Attention, 12, 3): IMAGE,
    partial(models.volo.Attention, 12, 3): MAP,
    partial(components.SelfAttention, 12, 3): TOKENS,
}
FORMING: Modules = {
    partial(bottleneck_attn.BottleneckAttn, 12, feat_size=(3, 5), num_heads=3): IMAGE,
    partial(models.davit.ChannelAttention, 12, 3): TOKENS,
    partial(models.edgenext.CrossCovarianceAttn, 12, 3): TOKENS,
    partial(models.efficientformer.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(models.efficientformer_v2.Attention2d, 12, 4, 3, resolution=(3, 5)): IMAGE,
    partial(models.gcvit.WindowAttentionGlobal, 12, 3, WINDOW, use_global=False): (4, 6, 12),
    partial(models.iformer.SHMA, 12): IMAGE,
    partial(models.levit.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(models.levit.Attention, 12, 4, 3, resolution=(3, 5), use_conv=True): IMAGE,
    partial(models.mvitv2.MultiScaleAttention, 12, 12, (3, 3), 3): TOKENS,
    partial(models.swin_transformer_v2.WindowAttention, 12, WINDOW, 3): (4, 6, 12),
    partial(models.swin_transformer_v2_cr.WindowMultiHeadAttention, 12, 3, WINDOW): (4, 6, 12),
    partial(models.tnt.Attention, 12, 12, 3): TOKENS,
    partial(models.xcit.XCA, 12, 3): TOKENS,
    partial(maxvit.RelativePositionalMultiHeadAttention, 12, 4, 4): (2, 5, 4, 12),
    partial(swin_transformer.ShiftedWindowAttention, 12, [2, 3], [1, 1], 3): MAP,
    partial(swin_transformer.ShiftedWindowAttentionV2, 12, [2, 3], [1, 1], 3): MAP,
}
# arguments of a forward beside its input
EXTRA: dict[Any, tuple[Any, ...]] = {
    models.twins.LocallyGroupedAttn: ((4, 6),),
    models.twins.GlobalSubSampleAttn: ((2, 5),),
    models.pvt_v2.Attention: ((2, 5),),
    models.gemma4_vit.Gemma4Attention: tuple(torch.ones(2, 10, 4).double() for _ in range(2)),
    models.mvitv2.MultiScaleAttention: ((3, 3),),
}
MODULES = CALLING | FORMING
NAMES = [f"{make.func.__module__.rpartition('.')[2]}-{make.func.__name__}" for make in MODULES]
all_modules = pytest.mark.parametrize(("make", "shape"), MODULES.items(), ids=NAMES)


def run(module: nn.Module, x: Tensor) -> Tensor:
    host_class: Any = getattr(type(module), "host_class", type(module))
    out = module(x, *EXTRA.get(host_class, ()))
    return out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize(
    ("modules", "known"), [(CALLING, CALLING_CLASSES), (FORMING, FORMING_CLASSES)]
)
def test_every_known_class_is_tried(modules, known):
    assert {f"{make.func.__module__}.{make.func.__name__}" for make in modules} == set(known)


@all_modules
def test_identity_and_detach_keep_the_output(make, shape):
    x = torch.randn(*shape).double()
    check_identity_and_detach(build_double(make), lambda module: run(module, x))


@all_modules
def test_the_filter_is_the_dense_one_in_output_and_gradients(make, shape):
    module, x = build_double(make), torch.randn(*shape).double().requires_grad_()
    stock = copy.deepcopy(module)
    randomize(attach(module, GFSA))
    weights = share_weights(module)
    y = run(module, x)
    if isinstance(
        stock, models.efficientformer_v2.Attention2d
    ):  # its map is what talking_head2 returns
        w = [weight.view(-1, 1, 1) for weight in weights]
        stock.talking_head2.register_forward_hook(lambda _, inputs, A: gfsa(A, A, w, K=3))
        expected = run(stock, x)
    else:
        with replace_maps(weights):
            expected = run(stock, x)
    assert_close(y, expected)
    probe = torch.randn_like(y)
    names = [name for name, _ in stock.named_parameters()]
    grads, reference = (
        torch.autograd.grad((out * probe).sum(), [x, *map(owner.get_parameter, names)])
        for out, owner in ((y, module), (expected, stock))
    )
    assert_close(grads, reference)


def test_layers_that_reduce_their_keys_stay_plain():
    reducing = [
        models.pvt_v2.Attention(12, 3, sr_ratio=2),
        models.twins.GlobalSubSampleAttn(12, 3, sr_ratio=2),
        models.nextvit.EfficientAttention(12, head_dim=4, sr_ratio=2),
        models.hiera.MaskUnitAttention(12, 24, 3, q_stride=4),
        models.hieradet_sam2.MultiScaleAttention(12, 12, 3, q_pool=nn.MaxPool2d(2)),
        attention2d.MultiQueryAttention2d(12, num_heads=3, kv_stride=2),
        attention2d.MultiQueryAttention2d(12, num_heads=3, query_strides=2),
    ]
    for module in reducing:
        assert find_generic_adapter(module) is None
    model = timm.create_model("pvt_v2_b0", num_classes=0).eval()
    with pytest.warns(UserWarning, match="stays as it is: Attention"):
        attach(model, GFSA)
    assert len(filtered_modules(model)) == 2  # the last of four stages


# the ways in which an attention of a user multiplies the map of its logits with the values
WAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "merged heads": lambda logits, v: torch.bmm(
        torch.softmax(logits.flatten(0, 1), -1), v.flatten(0, 1)
    ).view(v.shape),
    "values on the left": lambda logits, v: (v.mT @ logits.softmax(-1).transpose(-2, -1)).mT,
    "einsum": lambda logits, v: torch.einsum(
        "bhij,bjhd->bhid", logits.softmax(-1), v.transpose(1, 2)
    ),
    "named arguments": lambda logits, v: torch.matmul(
        input=torch.softmax(input=logits, dim=-1), other=v
    ),
    "returned map": lambda logits, v: ((A := logits.softmax(-1)) @ v, A),
}
REFUSED_WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over queries": lambda logits, v: logits.softmax(-2) @ v,
    "two products": lambda logits, v: (A := logits.softmax(-1)) @ v + A @ v.flip(-1),
}


class FormingAttention(nn.Module):
    """An attention of a user that forms its map."""

    def __init__(self, way: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.num_heads, self.way = 3, way
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        return self.way(q @ k.mT / 2, v)


def apply_filter(module: Any, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return A, and H(A) v of a module with one filter."""
    q, k, v = module.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    A = Softmax(q, k, **options).dense()
    return A, gfsa(A, A, [w.view(-1, 1, 1) for w in share_weights(module)], K=3) @ v


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_map_is_found_however_it_is_multiplied(way):
    module, x = FormingAttention(way).double(), torch.randn(2, 7, 12).double()
    randomize(attach(module, GFSA, where=FormingAttention))
    A, expected = apply_filter(module, x)
    y = module(x)
    if way is WAYS["returned map"]:
        y, returned = y
        assert_close(returned, A)
    assert_close(y, expected)


@pytest.mark.parametrize("options", [{}, {"mask": torch.arange(7) < 5}, {"is_causal": True}])
def test_masks_of_the_call_are_kept(options):
    module, x = OwnAttention().double(), torch.randn(2, 7, 12).double()
    randomize(attach(module, GFSA, where=OwnAttention))
    _, expected = apply_filter(module, x, **options)
    assert_close(module(x, **options), expected.transpose(1, 2).flatten(2))


def test_a_window_mask_is_kept():
    module = build_double(partial(models.swin_transformer_v2.WindowAttention, 12, WINDOW, 3))
    x, mask = torch.randn(4, 6, 12).double(), torch.zeros(2, 6, 6).double()
    mask[1, :3, 3:] = mask[1, 3:, :3] = -100.0
    stock = copy.deepcopy(module)
    randomize(attach(module, GFSA))
    with replace_maps(share_weights(module)):
        expected = stock(x, mask)
    assert_close(module(x, mask), expected)


def make_own(**options: Any) -> nn.Sequential:
    return nn.Sequential(OwnAttention(**options), nn.Linear(12, 12), OwnAttention(**options)).eval()


REFUSED_CALLS = {
    "twice": (make_own(calls=2), "OwnAttention applied 2 attention maps"),
    "never": (make_own(calls=0), "OwnAttention applied 0 attention maps"),
    "not square": (make_own(keys=5), r"OwnAttention has a map of 7 queries and 5 keys"),
    "unbatched": (make_own(unbatched=True), r"queries of 3 axes"),
} | {
    name: (FormingAttention(way), r"FormingAttention applied [02] attention maps")
    for name, way in REFUSED_WAYS.items()
}


@pytest.mark.parametrize(("model", "reason"), REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_a_forward_without_one_square_map_is_refused(model, reason):
    attach(model, GFSA, where=lambda module: hasattr(module, "qkv"))
    with pytest.raises(ValueError, match=reason):
        model(torch.randn(2, 7, 12))


WHERE = {
    "name": "OwnAttention",
    "path": "tests.hosts.helpers.OwnAttention",
    "class": OwnAttention,
    "predicate": lambda module: hasattr(module, "qkv"),
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_where_names_a_class_of_ones_own(where):
    model, x = make_own(), torch.randn(2, 7, 12)
    expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about a class that is filtered in part
        attach(model, GFSA, layers=-1, where=where)
    assert list(filtered_modules(model)) == ["2"]
    assert_close(model(x), expected)
    randomize(model)
    assert (model(x) - expected).abs().max() > 1e-3
    assert torch.equal(detach(model)(x), expected)


def test_where_is_refused_in_a_sentence():
    vit = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0)
    refused = [
        ("Nope", ValueError, r"no module 'Nope'; it has timm\.layers.* without where"),
        (nn.Conv1d, ValueError, "has no module of the class Conv1d"),
        (lambda module: False, ValueError, "has no module that where accepts"),
        (3, TypeError, "where must be a class, its name or a function of a module, got 3"),
        ("Block", ValueError, r"holds an attention that attach knows: where='Attention'"),
        (lambda module: True, ValueError, "and a part of it"),
        ("Mlp", ValueError, "Mlp stores no number of heads"),
    ]
    for where, error, reason in refused:
        with pytest.raises(error, match=reason):
            attach(vit, GFSA, where=where)
    assert not filtered_modules(vit)
    assert len(filtered_modules(attach(vit, GFSA, where="Attention"))) == 2


def test_models_without_known_attention_name_what_they_have():
    with pytest.raises(ValueError, match="where='OwnAttention' filters its map, if it applies one"):
        attach(make_own(), GFSA)
    with pytest.raises(ValueError, match="no other module is named as attention"):
        attach(nn.Linear(2, 2), GFSA)
    with pytest.raises(ValueError, match="SelfAttention takes its mechanisms when it is made"):
        attach(SelfAttention(4, 2), GFSA)
    mobilevit = timm.create_model("mobilevitv2_050", num_classes=0)
    path = r"timm\.models\.mobilevit\.LinearSelfAttention \(module 'stages\.2"
    with pytest.raises(ValueError, match=path):
        attach(mobilevit, GFSA)


@pytest.mark.parametrize("make", [
    partial(models.eva.EvaAttention, 12, 3, scale_norm=False),
    partial(models.levit.Attention, 12, 4, 3, resolution=(2, 5)),
])  # fmt: skip
def test_checkpointing_and_compiling_keep_the_filter(make):
    module, x = build_double(make), torch.randn(*TOKENS).double()
    randomize(attach(module, GFSA))
    module.train()  # in evaluation LeViT keeps its biases in a dict
    expected = run(module, x)
    again = torch.utils.checkpoint.checkpoint(module, x.requires_grad_(), use_reentrant=False)
    assert_close(again, expected)
    again.sum().backward()
    assert module.filter.wK.grad.abs().max() > 0
    torch.compiler.reset()
    assert_close(torch.compile(module, backend="aot_eager", fullgraph=True)(x), expected)
