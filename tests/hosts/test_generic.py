"""Modules that call torch's attention function: the map of that call is filtered, exactly."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from attention_core import GFSA, Softmax, attach, detach
from attention_core.hosts.generic import find_generic_adapter
from attention_core.hosts.known_classes import CALLING_CLASSES
from timm.layers import attention, attention2d
from timm.models import (
    beit,
    cpubone,
    davit,
    eva,
    fastvit,
    gemma4_vit,
    hiera,
    hieradet_sam2,
    lowformer,
    maxxvit,
    metaformer,
    nest,
    nextvit,
    pvt_v2,
    tiny_vit,
    twins,
    visformer,
    vision_transformer,
    vision_transformer_relpos,
    vision_transformer_sam,
    volo,
)
from torch import Tensor, nn
from torch.testing import assert_close
from torchaudio.models.wav2vec2 import components

from tests.core.reference import gfsa
from tests.hosts.helpers import (
    OwnAttention,
    build_double,
    check_identity_and_detach,
    filtered_modules,
    randomize,
)

TOKENS, IMAGE, MAP = (2, 10, 12), (2, 12, 3, 5), (2, 4, 6, 12)
# of each class: a small module, and the shape of its input
MODULES: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    partial(attention.AttentionRope, 12, 3): TOKENS,
    partial(attention.AttentionRope, 12, 6, num_kv_heads=2, qkv_fused=False): TOKENS,
    partial(attention2d.MultiQueryAttention2d, 12, num_heads=3): IMAGE,
    partial(beit.Attention, 12, 3, window_size=(3, 3)): TOKENS,
    partial(cpubone.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(davit.WindowAttention, 12, (2, 5), 3): TOKENS,
    partial(eva.EvaAttention, 12, 3, scale_norm=False): TOKENS,
    partial(fastvit.Attention, 12, head_dim=4): IMAGE,
    partial(hiera.MaskUnitAttention, 12, 12, 3): TOKENS,
    partial(hiera.MaskUnitAttention, 12, 12, 3, 1, 5, use_mask_unit_attn=True): (2, 15, 12),
    partial(hieradet_sam2.MultiScaleAttention, 12, 12, 3): MAP,
    partial(lowformer.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(maxxvit.Attention2d, 12, dim_head=4): IMAGE,
    partial(maxxvit.AttentionCl, 12, dim_head=4): MAP,
    partial(metaformer.Attention, 12, head_dim=4): (2, 10, 12),
    partial(nest.Attention, 12, 3): (2, 5, 7, 12),
    partial(nextvit.EfficientAttention, 12, head_dim=4): TOKENS,
    partial(tiny_vit.Attention, 12, 4, 3, 1, resolution=(2, 5)): TOKENS,
    partial(twins.LocallyGroupedAttn, 12, 3, ws=2): (2, 24, 12),
    partial(twins.GlobalSubSampleAttn, 12, 3): TOKENS,
    partial(pvt_v2.Attention, 12, 3): TOKENS,
    partial(vision_transformer.ParallelScalingBlock, 12, 3): TOKENS,
    partial(vision_transformer_relpos.RelPosAttention, 12, 3): TOKENS,
    partial(vision_transformer_sam.Attention, 12, 3): MAP,
    partial(visformer.Attention, 12, 3): IMAGE,
    partial(volo.Attention, 12, 3): MAP,
    partial(components.SelfAttention, 12, 3): TOKENS,
}
# arguments of a forward beside its input
EXTRA: dict[type[nn.Module], tuple[Any, ...]] = {
    twins.LocallyGroupedAttn: ((4, 6),),
    twins.GlobalSubSampleAttn: ((2, 5),),
    pvt_v2.Attention: ((2, 5),),
    gemma4_vit.Gemma4Attention: tuple(torch.ones(2, 10, 4).double() for _ in range(2)),
}
MODULES[partial(gemma4_vit.Gemma4Attention, 12, 6, 4, num_kv_heads=3)] = TOKENS
NAMES = [f"{make.func.__module__.rpartition('.')[2]}-{make.func.__name__}" for make in MODULES]
all_modules = pytest.mark.parametrize(("make", "shape"), MODULES.items(), ids=NAMES)


build = partial(build_double, min_axes=2)


def run(module: nn.Module, x: Tensor) -> Tensor:
    host_class: Any = getattr(type(module), "host_class", type(module))
    out = module(x, *EXTRA.get(host_class, ()))
    return out if isinstance(out, Tensor) else out[0]


def attend_densely(
    weights: list[Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Apply H with its powers written out to q, k, v (..., N, D), wherever the heads are."""
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    A = (logits if mask is None else logits + mask).softmax(-1)
    return gfsa(A, A, weights, K=3) @ v


def test_every_known_class_is_tried():
    tried = {f"{make.func.__module__}.{make.func.__name__}" for make in MODULES}
    assert tried == set(CALLING_CLASSES)


@all_modules
def test_identity_and_detach_keep_the_output(make, shape):
    x = torch.randn(*shape).double()
    check_identity_and_detach(build(make), lambda module: run(module, x))


@all_modules
def test_the_filter_is_the_dense_one_in_output_and_gradients(make, shape, monkeypatch):
    module, x = build(make), torch.randn(*shape).double().requires_grad_()
    stock = copy.deepcopy(module)
    if hasattr(stock, "fused_attn"):
        stock.fused_attn = True
    randomize(attach(module, GFSA))
    (layer,) = filtered_modules(module).values()
    y = run(module, x)
    heads = layer.count_heads(layer)
    weights = [w.detach().double() for w in (layer.filter.w0, layer.filter.w1, layer.filter.wK)]
    probe = torch.randn_like(y)
    grads = torch.autograd.grad((y * probe).sum(), [x, *stock_parameters(module)])

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        **kwargs: Any,
    ) -> Tensor:
        merged = q.ndim == 3
        axis = next(i for i, size in enumerate(q.shape) if merged or (i and size == heads))
        by_head = [w.repeat(q.shape[0] // heads) if merged else w for w in weights]
        at_axis = [w.view(-1, *[1] * (q.ndim - axis - 1)) for w in by_head]
        k, v = (
            u
            if u.shape[axis] == q.shape[axis]
            else u.repeat_interleave(q.shape[axis] // u.shape[axis], axis)
            for u in (k, v)
        )
        return attend_densely(at_axis, q, k, v, attn_mask, kwargs.get("scale"))

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    expected = run(stock, x)
    assert_close(y, expected)
    reference = torch.autograd.grad((expected * probe).sum(), [x, *stock.parameters()])
    assert_close(grads, reference)


def stock_parameters(module: nn.Module) -> list[nn.Parameter]:
    return [w for name, w in module.named_parameters() if "filter" not in name.split(".")]


def test_layers_that_reduce_their_keys_stay_plain():
    reducing = [
        pvt_v2.Attention(12, 3, sr_ratio=2),
        twins.GlobalSubSampleAttn(12, 3, sr_ratio=2),
        nextvit.EfficientAttention(12, head_dim=4, sr_ratio=2),
        hiera.MaskUnitAttention(12, 24, 3, q_stride=4),
        hieradet_sam2.MultiScaleAttention(12, 12, 3, q_pool=nn.MaxPool2d(2)),
        attention2d.MultiQueryAttention2d(12, num_heads=3, kv_stride=2),
        attention2d.MultiQueryAttention2d(12, num_heads=3, query_strides=2),
    ]
    for module in reducing:
        assert find_generic_adapter(module) is None
    model = timm.create_model("pvt_v2_b0", num_classes=0).eval()
    with pytest.warns(UserWarning, match="stays as it is: Attention"):
        attach(model, GFSA)
    assert len(filtered_modules(model)) == 2  # of the last of four stages


def make_own(**options: Any) -> nn.Sequential:
    return nn.Sequential(OwnAttention(**options), nn.Linear(12, 12), OwnAttention(**options)).eval()


WHERE = [
    "OwnAttention",
    "tests.hosts.helpers.OwnAttention",
    OwnAttention,
    lambda module: hasattr(module, "qkv"),
]


@pytest.mark.parametrize("where", WHERE, ids=["name", "path", "class", "predicate"])
def test_where_names_a_class_of_ones_own(where):
    model, x = make_own(), torch.randn(2, 7, 12)
    expected = model(x)
    attach(model, GFSA, layers=-1, where=where)
    assert list(filtered_modules(model)) == ["2"]
    assert_close(model(x), expected)
    randomize(model)
    assert (model(x) - expected).abs().max() > 1e-3
    assert torch.equal(detach(model)(x), expected)


def test_no_warning_names_a_class_that_was_filtered_in_part():
    model = nn.Sequential(OwnAttention(), OwnAttention())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(model, GFSA, layers="1:", where="OwnAttention")
    assert len(filtered_modules(model)) == 1


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_masks_of_the_call_are_kept(masked, is_causal):
    module, x = OwnAttention().double(), torch.randn(2, 7, 12).double()
    if masked and is_causal:
        pytest.skip("torch takes one of them")
    mask = torch.arange(7) < 5 if masked else None
    randomize(attach(module, GFSA, where=OwnAttention))
    q, k, v = module.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    A = Softmax(q, k, mask, is_causal).dense()
    f = module.filter
    H = gfsa(A, A, [w.double().view(-1, 1, 1) for w in (f.w0, f.w1, f.wK)], K=3)
    assert_close(module(x, mask, is_causal), (H @ v).transpose(1, 2).flatten(2))


REFUSED_CALLS = {
    "twice": ({"calls": 2}, "OwnAttention applied 2 attention maps"),
    "never": ({"calls": 0}, "OwnAttention applied 0 attention maps"),
    "not-square": ({"keys": 5}, r"OwnAttention has a map of 7 queries and 5 keys"),
    "unbatched": ({"unbatched": True}, r"queries of 3 axes"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_a_forward_without_one_square_map_is_refused(options, reason):
    model = attach(make_own(**options), GFSA, where=OwnAttention)
    with pytest.raises(ValueError, match=reason):
        model(torch.randn(2, 7, 12))


def test_where_is_refused_in_a_sentence():
    vit = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0)
    refused = [
        ("Nope", ValueError, r"no module 'Nope'; it has timm\.layers.* without where"),
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
    mobilevit = timm.create_model("mobilevitv2_050", num_classes=0)
    path = r"timm\.models\.mobilevit\.LinearSelfAttention \(module 'stages\.2"
    with pytest.raises(ValueError, match=path):
        attach(mobilevit, GFSA)


def test_checkpointing_and_compiling_keep_the_filter():
    module, x = (
        build(partial(eva.EvaAttention, 12, 3, scale_norm=False)),
        torch.randn(*TOKENS).double(),
    )
    randomize(attach(module, GFSA))
    expected = run(module, x)
    again = torch.utils.checkpoint.checkpoint(module, x.requires_grad_(), use_reentrant=False)
    assert_close(again, expected)
    again.sum().backward()
    assert module.filter.wK.grad.abs().max() > 0
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), expected)
