"""Dropout of a softmax map on a CPU, whose fused attention would form it: a block at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED = 2**18  # entries of the maps that are worked on at a time, one megabyte: they stay in cache
LANES = 2**16  # values of the random number of an entry


class Dropout(NamedTuple):
    """What a map is besides its operands: how it is made, and which of its entries are dropped."""

    is_causal: bool
    scale: float | None
    p: float
    seed: int

    @property
    def threshold(self) -> int:
        """How many of the 65536 values of a random number drop an entry."""
        return round(self.p * LANES)


def is_blockwise(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> bool:
    """Whether `attend` can do it: what it has no rule for is formed whole."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch.is_autocast_enabled("cpu")
        and q.device.type == k.device.type == v.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype
        and q.is_floating_point()
        and q.ndim == k.ndim == v.ndim == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and (q.shape[3], k.shape[2]) == (k.shape[3], v.shape[2])
        and 0 < round(p * LANES) < LANES
        # one block would save no memory, and its calls cost as much as what they save
        and q.shape[:3].numel() * k.shape[2] > CACHED
        and (mask is None or _is_constant(mask, (*q.shape[:3], k.shape[2])))
    )


def _is_constant(mask: Tensor, size: tuple[int, ...]) -> bool:
    fits = all(m in (1, n) for m, n in zip(mask.shape[::-1], size[::-1], strict=False))
    return fits and mask.ndim <= 4 and not mask.requires_grad and mask.device.type == "cpu"


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    r"""Apply a softmax map of which entries are dropped; the seed says which.

    .. math:: \frac{1}{1 - p} (\mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})
        \odot K) v, \qquad K_{ij} \sim \mathrm{Bernoulli}(1 - p)

    Every block of the map is formed in cache, and formed anew for the gradient: memory is
    O(N + M). An entry is dropped by 16 random bits: p is rounded to a multiple of 1/65536 (0.1 is
    0.10000610), and 1 / (1 - p) is that of the rounded p, so that the expectation is exact.

    Shapes: q (B, H, N, D), k (B, H, M, D), v (B, H, M, E), mask broadcasts to (B, H, N, M)
    -> (B, H, N, E). A row that may attend to nothing is zero.

    Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html, and
    https://arxiv.org/abs/2205.14135 (algorithm 4: the dropout mask is drawn anew for the gradient)

    >>> q, ones = torch.zeros(1, 1, 4000, 2), torch.ones(1, 1, 4000, 1)
    >>> y = attend(q, q, ones, None, Dropout(False, None, p=0.5, seed=1))
    >>> bool((y.mean() - 1).abs() < 0.01), bool(y.std() > 0.01)
    (True, True)
    """
    return _Attend.apply(q, k, v, mask, dropout)  # type: ignore[no-untyped-call]


# rows, columns, A, ones where an entry stays, and the weight of a row: 1 / (1 - p), or zero where
# it may attend to nothing; the maps of a part are in one axis
Block = tuple[slice, slice, Tensor, Tensor, Tensor | float]


class _Attend(torch.autograd.Function):
    """The map by blocks, and its gradient by the same blocks formed anew."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rest: Dropout) -> Tensor:
        y, scale = v.new_empty(*q.shape[:3], v.shape[3]), _scale(q, rest)
        generator = torch.Generator().manual_seed(rest.seed)
        for part in _parts(q, k):
            queries, keys, values = (_joined(t[part]) for t in (q, k, v))
            blocks = _blocks(queries * scale, keys, _of(part, mask, q.shape[:2]), rest, generator)
            rows = [(A.mul_(K) @ values[:, columns]) * w for _, columns, A, K, w in blocks]
            y[part] = torch.cat(rows, 1).view(y[part].shape)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *saved, ctx.rest = inputs
        ctx.save_for_backward(*saved)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask = ctx.saved_tensors
        found, scale = [torch.empty_like(t) for t in (q, k, v)], _scale(q, ctx.rest)
        generator = torch.Generator().manual_seed(ctx.rest.seed)
        for part in _parts(q, k):
            queries, keys, values, grad = (_joined(t[part]) for t in (q, k, v, g))
            queries = queries * scale
            blocks = _blocks(queries, keys, _of(part, mask, q.shape[:2]), ctx.rest, generator)
            grads = _adjoint(queries, keys, values, grad, blocks)
            for whole, d in zip(found, grads, strict=True):
                whole[part] = d.view(whole[part].shape)
        return found[0].mul_(scale), *found[1:], None, None


def _adjoint(
    queries: Tensor, keys: Tensor, values: Tensor, grad: Tensor, blocks: Iterator[Block]
) -> tuple[Tensor, ...]:
    """The gradients of a part."""
    dq, dk, dv = (torch.zeros_like(t) for t in (queries, keys, values))
    for rows, columns, A, stays, weight in blocks:
        gy = grad[:, rows] * weight
        dv[:, columns].baddbmm_((A * stays).mT, gy)
        dA = (gy @ values[:, columns].mT).mul_(stays)
        dlogits = torch._softmax_backward_data(dA, A, -1, A.dtype)
        torch.bmm(dlogits, keys[:, columns], out=dq[:, rows])
        dk[:, columns].baddbmm_(dlogits.mT, queries[:, rows])
    return dq, dk, dv


def _blocks(
    queries: Tensor, keys: Tensor, mask: Tensor | None, rest: Dropout, generator: torch.Generator
) -> Iterator[Block]:
    """The blocks of a part, in an order that the shapes alone decide, as does what they keep."""
    (maps, n, _), m = queries.shape, keys.shape[1]
    factor = LANES / (LANES - rest.threshold)
    for rows in _slices(n, CACHED // (maps * m)):
        columns = slice(0, min(rows.stop, m) if rest.is_causal else m)
        logits = queries[:, rows] @ keys[:, columns].mT
        weight: Tensor | float = factor
        if rest.is_causal:  # every query sees the first key
            _forbid_future(logits[..., rows.start :])
        if mask is not None:
            bias = _bias(mask[:, rows] if mask.shape[1] > 1 else mask, logits.dtype)
            logits += bias
            allowed = bias.amax(-1, keepdim=True) > torch.finfo(bias.dtype).min
            weight = allowed.to(bias.dtype) * factor
        stays = kept(logits.shape, rest.threshold, generator).to(logits.dtype)
        yield rows, columns, logits.softmax(-1), stays, weight


def _parts(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Samples and heads whose maps are one block; single maps where already one is more."""
    batch, heads, n, m = *q.shape[:3], k.shape[2]
    for b in _slices(batch, CACHED // (heads * n * m)):
        for h in _slices(heads, CACHED // (n * m)):
            yield b, h


def _slices(size: int, each: int) -> Iterator[slice]:
    each = max(1, each)
    return (slice(i, min(i + each, size)) for i in range(0, size, each))


def _of(part: tuple[slice, slice], mask: Tensor | None, sizes: torch.Size) -> Tensor | None:
    """The mask of a part, (maps, N or 1, M or 1): shared axes stay shared, but for the first."""
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.ndim)]
    return mask.expand(*sizes, -1, -1)[part].flatten(0, 1)


def _joined(x: Tensor) -> Tensor:
    """Samples and heads in one axis, contiguous, in no less than single precision."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.reshape(-1, *x.shape[2:]).contiguous()


def _scale(q: Tensor, rest: Dropout) -> float:
    return q.shape[-1] ** -0.5 if rest.scale is None else rest.scale


def _forbid_future(logits: Tensor) -> None:
    logits += logits.new_full(logits.shape[-2:], torch.finfo(logits.dtype).min).triu_(1)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to the logits: the lowest finite number, not -inf, forbids."""
    lowest = torch.finfo(dtype).min
    if mask.dtype == torch.bool:  # several times faster than filling
        return mask.to(dtype).sub_(1).mul_(-lowest)
    return mask.to(dtype).clamp(min=lowest)


def kept(shape: torch.Size, threshold: int, generator: torch.Generator) -> Tensor:
    """Ones where entries stay: `bernoulli_` takes seven times as long as this."""
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64)
    # the full range: `random_()` leaves the sign bit, and so a lane of four, at zero
    lanes = words.random_(-(2**63), None, generator=generator).view(torch.int16)
    return lanes[: shape.numel()].view(shape).ge_(threshold - LANES // 2)
