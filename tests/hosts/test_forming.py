"""Modules that form their map by a softmax: the product with the values is filtered, exactly."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attention_core import GFSA, attach
from attention_core.hosts.known_classes import FORMING_CLASSES
from timm.layers import bottleneck_attn
from timm.models import (
    davit,
    edgenext,
    efficientformer,
    efficientformer_v2,
    gcvit,
    iformer,
    levit,
    mvitv2,
    swin_transformer_v2,
    swin_transformer_v2_cr,
    tnt,
    xcit,
)
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import maxvit, swin_transformer

from tests.core.reference import gfsa
from tests.hosts.dense_maps import replace_maps, share_weights
from tests.hosts.helpers import build_double, check_identity_and_detach, filters, randomize

IMAGE, TOKENS, WINDOW = (2, 12, 3, 5), (2, 10, 12), (2, 3)
# of each class: a small module, and the shape of its input
MODULES: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    partial(bottleneck_attn.BottleneckAttn, 12, feat_size=(3, 5), num_heads=3): IMAGE,
    partial(davit.ChannelAttention, 12, 3): TOKENS,
    partial(edgenext.CrossCovarianceAttn, 12, 3): TOKENS,
    partial(efficientformer.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(efficientformer_v2.Attention2d, 12, 4, 3, resolution=(3, 5)): IMAGE,
    partial(gcvit.WindowAttentionGlobal, 12, 3, WINDOW, use_global=False): (4, 6, 12),
    partial(iformer.SHMA, 12): IMAGE,
    partial(levit.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(levit.Attention, 12, 4, 3, resolution=(3, 5), use_conv=True): IMAGE,
    partial(mvitv2.MultiScaleAttention, 12, 12, (3, 3), 3): (2, 10, 12),
    partial(swin_transformer_v2.WindowAttention, 12, WINDOW, 3): (4, 6, 12),
    partial(swin_transformer_v2_cr.WindowMultiHeadAttention, 12, 3, WINDOW): (4, 6, 12),
    partial(tnt.Attention, 12, 12, 3): TOKENS,
    partial(xcit.XCA, 12, 3): TOKENS,
    partial(maxvit.RelativePositionalMultiHeadAttention, 12, 4, 4): (2, 5, 4, 12),
    partial(swin_transformer.ShiftedWindowAttention, 12, [2, 3], [1, 1], 3): (2, 4, 6, 12),
    partial(swin_transformer.ShiftedWindowAttentionV2, 12, [2, 3], [1, 1], 3): (2, 4, 6, 12),
}
EXTRA: dict[Any, tuple[Any, ...]] = {mvitv2.MultiScaleAttention: ((3, 3),)}
NAMES = [f"{make.func.__module__.rpartition('.')[2]}-{make.func.__name__}" for make in MODULES]
all_modules = pytest.mark.parametrize(("make", "shape"), MODULES.items(), ids=NAMES)


def run(module: nn.Module, x: Tensor) -> Tensor:
    host_class: Any = getattr(type(module), "host_class", type(module))
    out = module(x, *EXTRA.get(host_class, ()))
    return out if isinstance(out, Tensor) else out[0]


def test_every_known_class_is_tried():
    tried = {f"{make.func.__module__}.{make.func.__name__}" for make in MODULES}
    assert tried == set(FORMING_CLASSES)


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
    if isinstance(stock, efficientformer_v2.Attention2d):  # its map is what talking_head2 returns
        w = [weight.view(-1, 1, 1) for weight in weights]
        stock.talking_head2.register_forward_hook(lambda _, inputs, A: gfsa(A, A, w, K=3))
        expected = run(stock, x)
    else:
        is_maxvit = isinstance(stock, maxvit.RelativePositionalMultiHeadAttention)
        with replace_maps(weights, head_axis=2 if is_maxvit else 1):  # (B, windows, H, N, N)
            expected = run(stock, x)
    assert_close(y, expected)
    probe = torch.randn_like(y)
    names = [name for name, _ in stock.named_parameters()]
    grads, reference = (
        torch.autograd.grad((out * probe).sum(), [x, *map(owner.get_parameter, names)])
        for out, owner in ((y, module), (expected, stock))
    )
    assert_close(grads, reference)


class OwnAttention(nn.Module):
    """An attention of a user that forms its map, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.num_heads, self.way = 3, way
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / 2
        A = logits.softmax(-1)
        if self.way == "merged heads":
            A = torch.softmax(logits.flatten(0, 1), -1)
            return torch.bmm(A, v.flatten(0, 1)).view(v.shape)
        if self.way == "values on the left":
            return (v.mT @ A.transpose(-2, -1)).mT
        if self.way == "einsum":
            return torch.einsum("bhij,bjhd->bhid", A, v.transpose(1, 2))
        if self.way == "named arguments":
            return torch.matmul(input=torch.softmax(input=logits, dim=-1), other=v)
        if self.way == "returned map":
            return A @ v, A
        if self.way == "over queries":
            return logits.softmax(-2) @ v
        return A @ v + A @ v.flip(-1)


WAYS = ["merged heads", "values on the left", "einsum", "named arguments", "returned map"]


@pytest.mark.parametrize("way", WAYS)
def test_a_map_is_found_however_it_is_multiplied(way):
    torch.manual_seed(0)
    module, x = OwnAttention(way).double(), torch.randn(2, 7, 12).double()
    q, k, v = module.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    A = (q @ k.mT / 2).softmax(-1)
    randomize(attach(module, GFSA, where=OwnAttention))
    (filter,) = filters(module)
    weights = [w.double().view(-1, 1, 1) for w in (filter.w0, filter.w1, filter.wK)]
    y = module(x)
    if way == "returned map":
        y, returned = y
        assert torch.equal(returned, A)
    assert_close(y, gfsa(A, A, weights, K=3) @ v)


@pytest.mark.parametrize("way", ["over queries", "two products"])
def test_a_forward_without_one_map_is_refused(way):
    module = attach(OwnAttention(way), GFSA, where=OwnAttention)
    with pytest.raises(ValueError, match=r"OwnAttention applied [02] attention maps"):
        module(torch.randn(2, 7, 12))


def test_a_window_mask_is_kept():
    module = build_double(partial(swin_transformer_v2.WindowAttention, 12, WINDOW, 3))
    x, mask = torch.randn(4, 6, 12).double(), torch.zeros(2, 6, 6).double()
    mask[1, :3, 3:] = mask[1, 3:, :3] = -100.0
    stock = copy.deepcopy(module)
    randomize(attach(module, GFSA))
    with replace_maps(share_weights(module)):
        expected = stock(x, mask)
    assert_close(module(x, mask), expected)


def test_compiling_keeps_the_filter():
    module = build_double(partial(levit.Attention, 12, 4, 3, resolution=3))
    x = torch.randn(2, 9, 12).double()
    randomize(attach(module, GFSA))
    module.train()  # in evaluation LeViT keeps its biases in a dict
    expected = run(module, x)
    torch.compiler.reset()
    compiled: Any = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), expected)
