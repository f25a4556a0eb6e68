"""Look at the filters of a model, draw their weights, write their maps out in a stock model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA
from attention_core.hosts.adapter import Filtered
from torch import Tensor, nn

from tests.core.reference import gfsa

LEARNED = partial(GFSA, learn=("w0", "w1", "wK"))


def filtered_modules(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Filtered)}


def filters(model: nn.Module) -> list[Any]:
    return [module.filter for module in filtered_modules(model).values()]


def run(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the output of a model, or the first of several."""
    out = model(**inputs)
    return out if isinstance(out, Tensor) else out[0]


def draw_weights(model: nn.Module, std: float, min_ndim: int = 2) -> nn.Module:
    """Draw the weights of a model that have some number of axes, for a fault to show."""
    for weight in model.parameters():
        if weight.ndim >= min_ndim:
            nn.init.normal_(weight, std=std)
    return model


def randomize(model: nn.Module, part: str = "filter") -> nn.Module:
    """Draw the weights of all filters, or of all functions of tokens."""
    for name, weight in model.named_parameters():
        if part in name.split("."):
            nn.init.normal_(weight, std=0.7)
    return model


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def record_calls(modules: list[nn.Module], call: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Return the inputs and the output of each module during a call."""
    calls: list[tuple[Any, Any]] = []
    for module in modules:
        module.register_forward_hook(lambda m, inputs, output: calls.append((inputs, output)))
    call()
    return calls


def take_snapshot(model: nn.Module) -> tuple[Any, ...]:
    """Return the classes and attributes of all modules and configs, and copies of all tensors."""
    holders: list[Any] = [*model.modules(), *(getattr(m, "config", None) for m in model.modules())]
    attributes = [
        (type(holder), {name: identify(value) for name, value in vars(holder).items()})
        for holder in holders
        if holder is not None
    ]
    attributes += [(weight.requires_grad, weight.grad) for weight in model.parameters()]
    return attributes, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identify(value: Any) -> Any:
    entries = [(key, id(entry)) for key, entry in value.items()] if isinstance(value, dict) else []
    return id(value), entries


def check_unchanged(model: nn.Module, before: tuple[Any, ...]) -> None:
    attributes, tensors = take_snapshot(model)
    assert attributes == before[0]
    assert list(tensors) == list(before[1])
    assert all(torch.equal(tensors[name], before[1][name]) for name in tensors)


class OwnAttention(nn.Module):
    """An attention of a user, with options of the call."""

    def __init__(self, calls: int = 1, keys: int | None = None, unbatched: bool = False) -> None:
        super().__init__()
        self.num_heads, self.calls, self.keys, self.unbatched = 3, calls, keys, unbatched
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        k, v = (u[:, :, : self.keys] for u in (k, v))
        if self.unbatched:
            q, k, v = (u.flatten(0, 1) for u in (q, k, v))
        y = torch.zeros_like(q)
        for _ in range(self.calls):
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return y.flatten(1) if self.unbatched else y.transpose(1, 2).flatten(2)


def difference(given: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest difference between outputs, in units of the largest value."""
    pairs = zip(given, other, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def share_weights(model: nn.Module) -> list[Tensor]:
    """Give all filters the weights of the first one; return these in float64, of shape (H,)."""
    first, *others = filters(model)
    for filter in others:
        for name in ("w0", "w1", "wK"):
            setattr(filter, name, getattr(first, name))
    return [w.detach().double().requires_grad_() for w in (first.w0, first.w1, first.wK)]


@contextmanager
def replace_maps(weights: list[Tensor], model_dtype=torch.float64) -> Iterator[list[Tensor]]:
    """Let each softmax over keys return GFSA's H of its result, if the map is square; list maps.

    Without weights H is the map. The last column may be an attention sink. The heads are the first
    axis of their size, or the faster part of the first of 3 axes. H has the dtype of the model,
    even where the model forms its maps in float32.
    """
    maps: list[Tensor] = []
    softmax, heads = Tensor.softmax, len(weights[0]) if weights else 0  # F.softmax calls it

    def find_head_axis(x: Tensor) -> int:
        return next(i for i in range(1, x.ndim) if x.shape[i] == heads) if x.ndim > 3 else 0

    def write_out(input: Tensor, dim: int = -1, dtype: Any = None, **kwargs: Any) -> Tensor:
        A = softmax(input if dtype is None else input.to(dtype), dim)
        sinks = A.shape[-1] - A.shape[-2] if A.ndim > 2 else -1
        if dim not in (-1, A.ndim - 1) or sinks not in (0, 1):
            return A
        A, sink = A.tensor_split([A.shape[-2]], -1)
        maps.append(A.detach())
        if not weights:
            return torch.cat([A, sink], -1)
        axis = find_head_axis(A)
        by_head = [w if axis else w.repeat(len(A) // heads) for w in weights]
        H = gfsa(A.double(), A, [w.view(-1, *[1] * (A.ndim - axis - 1)) for w in by_head], K=3)
        return torch.cat([H.to(model_dtype), sink], -1)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        axis = find_head_axis(q) if heads else 1
        k, v = (x.repeat_interleave(q.shape[axis] // x.shape[axis], axis) for x in (k, v))
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            lowest = torch.finfo(q.dtype).min  # a row without a key stays finite
            attn_mask = q.new_zeros(()).masked_fill(~attn_mask, lowest)
        return write_out(logits if attn_mask is None else logits + attn_mask) @ v

    with pytest.MonkeyPatch.context() as patch:
        for holder in (F, torch, Tensor):
            patch.setattr(holder, "softmax", write_out)
        patch.setattr(F, "scaled_dot_product_attention", attend)
        yield maps


def check_dense(
    model: nn.Module, stock: nn.Module, call: Callable[[nn.Module], list[Tensor]], limit: float,
    given: Sequence[Tensor] = (), differentiates: bool = True,
) -> None:  # fmt: skip
    """Compare outputs and gradients with those of the stock model whose maps are written out.

    All coefficients of the model learn; `given` are inputs that need a gradient.
    """
    nn.ModuleList(filters(model)).to(next(stock.parameters()).dtype)
    weights = share_weights(model)
    y = call(model)
    if hasattr(stock, "talking_head2"):  # the map is what it returns
        w = [weight.view(-1, 1, 1) for weight in weights]
        stock.talking_head2.register_forward_hook(lambda _, inputs, A: gfsa(A, A, w, K=3))
        expected = call(stock)
    else:
        with replace_maps(weights, y[0].dtype):
            expected = call(stock)
    assert difference(y, expected) < limit
    if not differentiates:
        return
    probes, grads, first = [torch.randn_like(x) for x in expected], [], filters(model)[0]
    names = [name for name, weight in stock.named_parameters() if weight.requires_grad]
    coefficients = [first.w0, first.w1, first.wK], weights
    for owner, outputs, own in zip((model, stock), (y, expected), coefficients, strict=True):
        pairs = zip(outputs, probes, strict=True)
        total = sum((out * probe).sum() for out, probe in pairs if out.requires_grad)
        leaves = [*given, *map(owner.get_parameter, names), *own]
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        grads.append([grad.nan_to_num() for grad in found])  # LED gives NaN beside its window
    assert all(grad.abs().max() > 0 for grad in grads[1][-3:])
    largest = max(float(grad.abs().max()) for grad in grads[1])
    for ours, theirs in zip(*grads, strict=True):
        assert (ours - theirs).abs().max() < limit * largest
