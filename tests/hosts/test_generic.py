"""Modules that call torch's attention, or form their map by a softmax: filtered, exactly."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from attention_core import GFSA, AttnScale, ReAttention, Softmax, attach, detach
from attention_core.hosts.selection import adapter_for
from timm import models
from timm.layers import attention2d
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core.reference import gfsa
from tests.hosts import helpers
from tests.hosts.generic_modules import ModuleCase
from tests.hosts.helpers import OwnAttention


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
        assert adapter_for(module) is None
    model = timm.create_model("pvt_v2_b0", num_classes=0).eval()
    with pytest.warns(UserWarning, match="stays as it is: Attention"):
        attach(model, GFSA)
    assert len(helpers.filtered_modules(model)) == 2  # the last of four stages


# the ways in which an attention of a user multiplies the map of its logits with the values
WAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "merged heads": lambda s, v: torch.bmm(
        torch.softmax(s.flatten(0, 1), -1), v.flatten(0, 1)
    ).view(v.shape),
    "values on the left": lambda s, v: (
        (v.mT @ s.softmax(-1).transpose(-2, -1).permute(0, 1, 3, 2).swapaxes(-1, -2)).mT
    ),
    "einsum": lambda s, v: torch.einsum("bhij,bjhd->bhid", s.softmax(-1), v.transpose(1, 2)),
    "named arguments": lambda s, v: torch.matmul(input=torch.softmax(input=s, dim=-1), other=v),
    "values first": lambda s, v: torch.einsum("...jd,...ij->...id", v, s.softmax(-1).mT.mT),
    "divided": lambda s, v: torch.linalg.matmul((A := s.softmax(-1)) / A.sum(-1, keepdim=True), v),
    "returned map": lambda logits, v: ((A := logits.softmax(-1)) @ v, A),
}
REFUSED_WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over queries": lambda logits, v: logits.softmax(-2) @ v,
    "two products": lambda logits, v: (A := logits.softmax(-1)) @ v + A @ v.flip(-1),
    "implicit einsum": lambda logits, v: torch.einsum("bhij,bhjd", logits.softmax(-1), v),
    "checkpointed": lambda s, v: checkpoint(lambda s: s.softmax(-1) @ v, s, use_reentrant=False),
}
CAUSAL = torch.ones(7, 7, dtype=torch.bool).tril()


class FormingAttention(nn.Module):
    """An attention of a user that forms its map."""

    def __init__(self, way: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.num_heads, self.way = 3, way
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return self.way(q @ k.mT / 2, v)


def apply_filter(module: Any, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return A, and H(A) v of a module with one filter."""
    q, k, v = module.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    A = Softmax(q, k, **options).dense()
    return A, gfsa(A, A, [w.view(-1, 1, 1) for w in helpers.share_weights(module)], K=3) @ v


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_map_is_found_however_it_is_multiplied(way):
    module, x = FormingAttention(way).double(), torch.randn(2, 7, 12).double()
    helpers.randomize(attach(module, GFSA, where=FormingAttention))
    A, expected = apply_filter(module, x)
    y = module(x)
    if way is WAYS["returned map"]:
        y, returned = y
        assert_close(returned, A)
    assert_close(y, expected)


MASKED = [{"mask": mask} for mask in (None, torch.arange(7) < 5, causal_lower_right(7, 7))]


@pytest.mark.parametrize("options", [*MASKED, {"is_causal": True}])
def test_masks_of_the_call_are_kept(options):
    module, x = OwnAttention().double(), torch.randn(2, 7, 12).double()
    helpers.randomize(attach(module, GFSA, where=OwnAttention))
    _, expected = apply_filter(module, x, **options)
    assert_close(module(x, **options), expected.transpose(1, 2).flatten(2))


def make_own(**options: Any) -> nn.Sequential:
    return nn.Sequential(OwnAttention(**options), nn.Linear(12, 12), OwnAttention(**options)).eval()


REFUSED_CALLS = {
    "twice": (make_own(calls=2), "OwnAttention applied 2 attention maps"),
    "never": (make_own(calls=0), "OwnAttention applied 0 attention maps"),
    "not square": (make_own(keys=5), r"OwnAttention has a map of 7 queries and 5 keys"),
    "unbatched": (make_own(unbatched=True), r"queries of 3 axes"),
} | {
    name: (FormingAttention(way), r"FormingAttention (applied [02]|applies its|checkpoints its)")
    for name, way in REFUSED_WAYS.items()
}


@pytest.mark.parametrize(("model", "reason"), REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_a_forward_without_one_square_map_is_refused(model, reason):
    attach(model, GFSA, where=lambda module: hasattr(module, "qkv"))
    with pytest.raises(ValueError, match=reason):
        model(torch.randn(2, 7, 12))


def test_what_a_formed_map_hides_is_not_mixed():
    module = FormingAttention(lambda s, v: s.masked_fill(~CAUSAL, -1e9).softmax(-1) @ v)
    x = torch.randn(2, 7, 12)
    attach(module, partial(AttnScale, masked=False), where=FormingAttention)
    with pytest.raises(ValueError, match="keeps tokens apart that AttnScale"):
        module(x)
    with pytest.warns(UserWarning, match="re-attention fills pairs"):
        attach(detach(module), ReAttention, where=FormingAttention)(x)
    with pytest.raises(ValueError, match=r"called as cross-attention.*leave it out by layers="):
        module(x, context=x + 1)


WHERE = {
    "name": "OwnAttention",
    "path": "tests.hosts.helpers.OwnAttention",
    "class": OwnAttention,
    "predicate": lambda module: hasattr(module, "qkv"),
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_where_names_a_class_of_ones_own(where):
    model, x = make_own(), torch.randn(2, 7, 12)
    model[2].gain = nn.Parameter(torch.ones(1))
    nn.utils.parametrize.register_parametrization(model[2], "gain", nn.Identity())
    expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about a class that is filtered in part
        attach(model, GFSA, layers=-1, where=where)
    assert list(helpers.filtered_modules(model)) == ["2"]
    assert_close(model(x), expected)
    helpers.randomize(model)
    assert (model(x) - expected).abs().max() > 1e-3
    assert torch.equal(detach(model)(x), expected)


@pytest.mark.parametrize("make", [
    partial(models.eva.EvaAttention, 12, 3, scale_norm=False),
    partial(models.levit.Attention, 12, 4, 3, resolution=(2, 5)),
    partial(FormingAttention, WAYS["values on the left"]),
])  # fmt: skip
def test_checkpointing_and_compiling_keep_the_filter(make):
    module, x = ModuleCase(make, ()).build(), torch.randn(2, 10, 12).double()
    helpers.randomize(attach(module, GFSA, where=type(module)))
    module.train()  # in evaluation LeViT keeps its biases in a dict
    expected = module(x)
    again = checkpoint(module, x.requires_grad_(), use_reentrant=False)
    assert_close(again, expected)
    again.sum().backward()
    assert module.filter.wK.grad.abs().max() > 0
    assert_close(torch.fx.symbolic_trace(nn.Sequential(module))(x), expected)
    torch.compiler.reset()
    assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), expected)
