"""Polynomials of a softmax map on a CPU: formed a few heads at a time, again for the gradient.

A polynomial of degree two takes 10 products where plain attention takes 7, in the memory of a few
maps; fused calls would compute the softmax for each power. One application needs a few rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attention_core.operators.base import is_traced
from attention_core.operators.polynomial import Step, basis_terms, horner_terms

CHUNK_NUMEL = 2**18  # entries of the maps that are formed together: 1 MiB fits the cache
RNG_LEVELS = 2**16  # an entry is dropped by a random number of 16 bits
Options = tuple[float, int, Sequence[Step]]  # scale, threshold of dropout, steps


def can_recompute(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True for self-attention in single or double precision, outside of transforms."""
    fits = q.ndim == 4 and q.shape == k.shape and q.shape[:3] == v.shape[:3] and q.numel() > 0
    is_wide = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    is_plain_call = not is_traced() and not torch.is_autocast_enabled("cpu")
    return fits and is_wide and is_plain_call and q.device.type == "cpu"


def apply_recomputed(
    operands: Sequence[Any], scale: float, p: float, theta: Sequence[Tensor], steps: Sequence[Step]
) -> Tensor:
    r"""Apply a polynomial of a softmax map to values, with one dropout mask for all powers.

    .. math:: A = \frac{1}{1 - p} \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})
        \odot M, \qquad M_{ij} \sim \mathrm{Bernoulli}(1 - p)

    p is rounded to a multiple of 2^-16. The seeds of M come from torch's global generator. Without
    coefficients it is A v.

    Shapes: operands are q and k (B, H, N, D), v (B, H, N, E), and None or a mask that
    broadcasts to (B, H, N, N); a coefficient is (H, 1, 1) -> (B, H, N, E).
    """
    q, k, v, mask = operands
    if mask is not None:
        mask = mask.to(q.dtype).log_() if mask.dtype == torch.bool else mask  # 0 or -inf
        mask = mask[(None,) * (4 - mask.ndim)]
    threshold = round(p * RNG_LEVELS)
    factor = RNG_LEVELS / (RNG_LEVELS - threshold) if threshold < RNG_LEVELS else 0.0
    options = scale, threshold, [(a * factor, b, c) for a, b, c in steps]
    weights = [c.expand(*q.shape[:2], 1, 1) for c in theta]
    # (B, N, H, E) is the layout that a host's next projection reads
    return _apply_by_parts(options, q, mask, k, v, *weights).contiguous().transpose(1, 2)


def _apply_by_parts(options: Options, *inputs: Any) -> Tensor:
    """Apply the maps of some samples, of some heads, or some rows of one head: (B, N, H, E)."""
    shape = torch.Size((*inputs[0].shape[:3], inputs[2].shape[2]))
    for axis in range(2 if len(inputs) > 4 else 3):
        numel = CHUNK_NUMEL * (1 + axis // 2)  # each part of the rows adds to the gradients of k, v
        count = max(1, numel // shape[axis + 1 :].numel())
        if count < shape[axis]:
            # queries and masks have rows; an axis of one entry of a mask stays as it is
            parts = [
                t.split(count, axis)
                if t is not None and t.shape[axis] > 1 and (axis < 2 or i < 2)
                else [t] * -(-shape[axis] // count)
                for i, t in enumerate(inputs)
            ]
            joined = [_apply_by_parts(options, *part) for part in zip(*parts, strict=True)]
            return torch.cat(joined, (0, 2, 1)[axis])
    return _Recomputed.apply(options, *inputs)  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    """Compute sum_k theta_k T_k(A) v, or A v, and its gradient from A formed again."""

    @staticmethod
    def forward(ctx: Any, options: Options, *inputs: Any) -> Tensor:
        ctx.options, ctx.num_inputs = options, len(inputs)
        ctx.seed = int(torch.randint(2**63 - 1, ())) if options[1] else 0
        y, *sums = _sum_powers(ctx, *inputs)
        ctx.save_for_backward(*inputs, *sums)
        return y.view(*inputs[0].shape[:3], -1).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved, g = ctx.saved_tensors, g.transpose(1, 2).flatten(0, 1)
        # views have gradients of their own: an operand may be another one, or computed from it
        inputs = [t if t is None else t.view_as(t) for t in saved[: ctx.num_inputs]]
        with torch.autocast("cpu", enabled=False):  # which may be on where backward is called
            if not torch.is_grad_enabled():
                return None, *_differentiate(ctx, g, inputs, *saved[ctx.num_inputs :])
            # with create_graph, autograd differentiates the equation
            wanted = [t for t in inputs if t is not None and t.requires_grad]
            y = _sum_powers(ctx, *inputs)[0]
            found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
            return tuple(next(found) if need else None for need in ctx.needs_input_grad)


def _sum_powers(ctx: Any, *inputs: Any) -> list[Tensor]:
    """Return the polynomial of A applied to v, and the inner sums of Horner's scheme."""
    (q, mask, k, *others), steps = inputs, ctx.options[-1]
    A = _form_map(ctx, q, mask, k)[2]
    v, *theta = (t.flatten(0, 1) for t in others)
    sums = horner_terms(A.__matmul__, v, theta, steps) if theta else [v, A @ v * steps[0][0]]
    return list(sums)[:0:-1]


def _differentiate(ctx: Any, g: Tensor, inputs: Sequence[Any], *sums: Tensor) -> list[Any]:
    (q, mask, k, *others), (scale, _, steps) = inputs, ctx.options
    A, kept, dropped, queries = _form_map(ctx, q, mask, k)
    keys, values, *theta = (t.flatten(0, 1) for t in (k, *others))
    # the gradients of Horner's sums are the polynomials of the basis, of A^T applied to g
    terms = list(basis_terms(steps, dropped.mT.__matmul__, g)) if theta else [g]
    inner, dA = [*sums, theta[-1] * values if theta else values], torch.empty_like(A)
    for i, (term, u, (a, _, _)) in enumerate(zip(terms, inner, steps, strict=False)):
        dA.baddbmm_(term, u.mT, beta=min(i, 1), alpha=a)
    dA = dA if kept is None else dA.mul_(kept)
    torch.ops.aten._softmax_backward_data.out(dA, A, -1, A.dtype, grad_input=dA)  # in place
    needed = ctx.needs_input_grad[2]
    dmask = dA.view(*q.shape[:3], -1).sum_to_size(mask.shape) if needed else None
    dq, dk = (dA @ keys).mul_(scale), dA.mT @ queries
    dv = theta[0] * g if theta else dropped.mT @ (g * steps[0][0])
    for weight, term in zip(theta[1:], terms[1:], strict=True):
        dv.addcmul_(weight, term)
    dtheta = [(term * values).sum((1, 2)) for term in terms[: len(theta)]]
    grads = zip((dq, dmask, dk, dv, *dtheta), inputs, strict=True)
    return [d if d is None else d.view(t.shape) for d, t in grads]


def _form_map(ctx: Any, q: Tensor, mask: Tensor | None, k: Tensor) -> tuple[Any, ...]:
    """Form the same map each time: A, (maps, N, M), kept entries, their product, and queries."""
    (scale, threshold, _), kept = ctx.options, None
    queries = q.flatten(0, 1) * scale
    A = queries @ k.flatten(0, 1).mT
    if mask is not None:
        A.view(*q.shape[:3], -1).add_(mask)
        empty = A.detach().amax(-1, keepdim=True) == -torch.inf
        if empty.any():  # a row that may attend to nothing is zero
            A, kept = A.masked_fill_(empty, 0.0), (~empty).to(A.dtype)
    A = torch.softmax(A, -1, out=None if torch.is_grad_enabled() else A)
    if threshold:
        # a number of 64 bits makes four entries, 7 times as fast as torch's dropout; without
        # bounds, `random_` never sets the sign bit, which every fourth entry uses
        words = torch.empty(-(-A.numel() // 4), dtype=torch.int64)
        words.random_(-(2**63), None, generator=torch.Generator().manual_seed(ctx.seed))
        numbers = words.view(torch.int16)[: A.numel()].view(A.shape)
        drawn = numbers.ge_(threshold - RNG_LEVELS // 2).to(A.dtype)
        kept = drawn if kept is None else drawn.mul_(kept)
    return A, kept, A if kept is None else A * kept, queries
