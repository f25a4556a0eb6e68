"""Polynomials of a map applied to values: no power of A is formed, and A only where it is short."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_core.operators.base import Operator, propagate
from attention_core.operators.dropped import CACHED
from attention_core.operators.formed import is_traced
from attention_core.operators.recurrence import Step, adjoint, basis_terms, evaluate_polynomial
from attention_core.operators.softmax import Softmax

SHORT = 4  # tokens per unit of head width: a map is then at most four times its values
# entries of the maps of a batch: 64 megabytes, of which a gradient keeps three; from there on
# blocks are faster for two applications, and take 1.3 times as long for five
FORMED = 2**24


def apply_polynomial(
    A: Operator, v: Tensor, theta: Sequence[Tensor], steps: Sequence[Step]
) -> Tensor:
    r"""The same for a square map, whose gradient keeps nothing but q, k and v where A is short.

    Every application is one fused call. The gradients of K fused calls keep K maps' worth of
    values and compute the softmax K times: on a CPU the map of a short sequence (N <= 4 D) is
    formed once for the gradient instead, a few samples at a time so that it stays in cache.
    Dropout makes a CPU's fused call form the map anyway, and so does a learned bias: there it is
    formed and dropped once, as published code does, and every application sees the same one. The
    maps of long sequences are not formed for dropout: each application drops the same entries by
    blocks. Elsewhere each draws afresh.

    Shapes: v (B, H, N, D) -> (B, H, N, D); K steps and K + 1 weights, broadcastable to v.

    Raises ValueError with the two lengths where A is not square.

    Source: https://arxiv.org/abs/1604.06174 (recomputing what is cheap)

    >>> A, one = torch.full((1, 2, 2), 0.5), torch.ones(1, 1, 1)
    >>> apply_polynomial(A, torch.tensor([[[1.0], [3.0]]]), [0 * one, one], [(1, 0, 0)]).flatten()
    tensor([2., 2.])
    """
    if isinstance(A, Softmax) and _is_short(A, v) and _is_plain(theta, steps):
        rest = (A.mask, A.is_causal, A.scale, steps)
        return _Short.apply(A.q, A.k, v, rest, *theta)  # type: ignore[no-untyped-call]
    if isinstance(A, Softmax) and len(steps) > 1 and (A.is_learned or _is_dropped_once(A)):
        long = A.is_blockwise(v) and A.q.shape[:-1].numel() * A.k.shape[-2] > FORMED
        A = A.seeded() if long else A.formed()
        if isinstance(A, Tensor) and _is_alike(A, v) and _is_plain(theta, steps):
            return _Formed.apply(A, v, steps, *theta)  # type: ignore[no-untyped-call]
    return evaluate_polynomial(steps, theta, lambda u: propagate(A, u), v)


def _is_dropped_once(A: Softmax) -> bool:
    return A.dropout > 0 and A.q.device.type == "cpu"  # by a compiler's own dropout too


def _is_short(A: Softmax, v: Tensor) -> bool:
    """Whether forming the map is less work; half precision and compilers fare better fused."""
    q, k, mask = A.q, A.k, A.mask
    return (
        q.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.float32, torch.float64)
        and not is_traced()
        and not torch.is_autocast_enabled("cpu")
        and A.dropout == 0  # else each application draws its own mask
        and not (mask is not None and mask.requires_grad)
        and q.ndim == 4
        and q.shape[:3] == k.shape[:3] == v.shape[:3]
        and q.shape[2] <= SHORT * q.shape[3]
    )


def _is_alike(A: Tensor, v: Tensor) -> bool:
    """Whether a formed map and values need no conversion, which a gradient by hand knows not of."""
    return A.dtype == v.dtype and A.shape[:-1] == v.shape[:-1] and not is_traced()


def _is_plain(theta: Sequence[Tensor], steps: Sequence[Step]) -> bool:
    """Whether the weights commute with A, being the same for all tokens and samples."""
    alike = all(w.ndim <= 3 and (w.ndim < 2 or w.shape[-2] == 1) for w in theta)
    return alike and len(steps) > 1 and steps[0][2] == 0


def _parts(size: torch.Size) -> Iterator[slice]:
    """Samples, so many at a time that their maps stay in cache."""
    batch, heads, n, _ = size
    each = max(1, CACHED // max(1, heads * n * n))
    return (slice(start, start + each) for start in range(0, batch, each))


Rest = tuple[Tensor | None, bool, float | None, Sequence[Step]]  # mask, is_causal, scale, steps


class _Short(torch.autograd.Function):
    """sum_k theta_k T_k(A) v by fused calls, and its gradient by A formed anew."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, rest: Rest, *theta: Tensor) -> Tensor:
        mask, is_causal, scale, steps = rest
        y = torch.empty_like(v)
        for part in _parts(q.shape):
            A = Softmax(q[part], k[part], _of(part, mask), is_causal, scale=scale)
            y[part] = evaluate_polynomial(steps, theta, A.__matmul__, v[part])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, ctx.rest, *theta = inputs
        ctx.save_for_backward(q, k, v, *theta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *theta = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        mask, is_causal, scale, steps = ctx.rest
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        dtheta = [torch.zeros_like(w) if w.requires_grad else None for w in theta]
        for part in _parts(q.shape):
            # contiguous: the strides of a joint projection slow down all that follows
            queries, keys, values, grad = (t[part].contiguous() for t in (q, k, v, g))
            queries = queries * scale
            A = Softmax(queries, keys, _of(part, mask), is_causal, scale=1.0).dense()
            terms = list(basis_terms(steps[:-1], A.__matmul__, values))
            dA, dv[part] = adjoint(A, terms, grad, steps, theta, dtheta)
            dlogits = torch._softmax_backward_data(dA, A, -1, A.dtype)
            dq[part], dk[part] = dlogits @ (keys * scale), dlogits.mT @ queries
        return dq, dk, dv, None, *dtheta


class _Formed(torch.autograd.Function):
    """sum_k theta_k T_k(A) v of a map that is there, whose gradient is written once."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, v: Tensor, steps: Sequence[Step], *theta: Tensor) -> Tensor:
        terms = list(basis_terms(steps, A.__matmul__, v.contiguous()))
        ctx.steps, ctx.order = steps, len(steps)
        ctx.save_for_backward(A, *terms[:-1], *theta)
        y = theta[0] * terms[0]
        for weight, term in zip(theta[1:], terms[1:], strict=True):
            y = y.addcmul_(weight, term)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        A, *rest = ctx.saved_tensors
        terms, theta = rest[: ctx.order], rest[ctx.order :]
        dtheta = [torch.zeros_like(w) if w.requires_grad else None for w in theta]
        dA, dv = adjoint(A, terms, g.contiguous(), ctx.steps, theta, dtheta)
        return dA, dv, None, *dtheta


def _of(part: slice, mask: Tensor | None) -> Tensor | None:
    shared = mask is None or mask.ndim < 4 or mask.shape[0] == 1
    return mask if shared or mask is None else mask[part]
