"""Polynomials of a softmax map on a CPU: formed a few heads at a time, again for the gradient.

A polynomial of degree two takes 10 products where plain attention takes 7, in the memory of a few
maps; fused calls would compute the softmax for each power. One application needs a few rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attention_core.operators.polynomial import Step, basis_terms, horner_terms

CHUNK_NUMEL = 2**18  # entries of the maps that are formed together: 1 MiB fits the cache
RNG_LEVELS = 2**16  # an entry is dropped by a random number of 16 bits


def apply_recomputed(
    operands: Sequence[Any], scale: float, p: float, theta: Sequence[Tensor], steps: Sequence[Step]
) -> Tensor:
    r"""Apply a polynomial of a softmax map to values, with one dropout mask for all powers.

    .. math:: A = \frac{1}{1 - p} \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})
        \odot M, \qquad M_{ij} \sim \mathrm{Bernoulli}(1 - p)

    p is rounded to a multiple of 2^-16; torch's global generator draws M. Without theta it is A v.

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
    return _Recomputed.apply(options, q, mask, k, v, *weights).transpose(1, 2)  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    """Compute sum_k theta_k T_k(A) v, or A v, and its gradient from A formed again."""

    @staticmethod
    def forward(ctx: Any, options: Any, *inputs: Any) -> Tensor:
        ctx.options, ctx.seed = options, int(torch.randint(2**62, ())) if options[1] else 0
        like = inputs[3].transpose(1, 2)  # (B, N, H, E), which a host's next projection reads
        y = like.new_empty(like.shape)
        inner = [y.new_empty(inputs[3].shape) for _ in inputs[6:]]
        rows = [inputs[0], y.transpose(1, 2), *inner, inputs[1]]
        for i, (q, *outs, mask), part in _split_parts(rows, inputs[2:]):
            for out, u in zip(outs, _sum_powers(ctx, i, q, mask, *part), strict=True):
                out.copy_(u.view(out.shape))
        ctx.save_for_backward(*inputs, *inner)
        return y  # not a view, which would be read-only

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        g, saved, needed = g.transpose(1, 2), ctx.saved_tensors, ctx.needs_input_grad[1:]
        # views have gradients of their own: an operand may be another one, or computed from it
        inputs: list[Any] = [t if t is None else t.view_as(t) for t in saved[: len(needed)]]
        q, mask, *others = inputs
        with torch.autocast("cpu", enabled=False):  # which may be on where backward is called
            if torch.is_grad_enabled():  # with create_graph, autograd differentiates the equation
                whole = [(0, (q, g, mask), others)]  # each part of dropout has its own seed
                parts = [*_split_parts((q, g, mask), others)] if ctx.options[1] else whole
                ys = [_sum_powers(ctx, i, q, mask, *part)[0] for i, (q, _, mask), part in parts]
                gs = [g.flatten(0, 1) for _, (_, g, _), _ in parts]
                wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
                found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=True))
                return None, *(next(found) if need else None for need in needed)
            grads = [t.new_zeros(t.shape) if t is not mask or needed[1] else None for t in inputs]
            rows = [q, g, grads[0], *saved[len(needed) :], mask, grads[1]]
            for part in _split_parts(rows, [*others, *grads[2:]]):
                _add_gradients(ctx, *part)
        return None, *grads


def _split_parts(rows: Sequence[Any], others: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Split into a few samples, heads, or rows: tensors with the queries' rows, and others."""
    shape = torch.Size((*rows[0].shape[:3], others[0].shape[2]))
    parts = [[t] for t in (*rows, *others)]
    for axis in range(2 if len(others) > 4 else 3):  # a polynomial needs whole maps
        numel = CHUNK_NUMEL * (1 + axis // 2)  # each part of the rows adds to the gradients of k, v
        count = max(1, numel // shape[axis + 1 :].numel())
        repeats = -(-shape[axis] // count)
        for i, ts in enumerate(parts if repeats > 1 else []):
            # whole stay no mask, an axis of one entry of a mask, and the rows of keys and values
            stays = ts[0] is None or ts[0].shape[axis] == 1 or (axis == 2 and i >= len(rows))
            parts[i] = [p for t in ts for p in (repeats * [t] if stays else t.split(count, axis))]
    for i, part in enumerate(zip(*parts, strict=True)):
        yield i, part[: len(rows)], part[len(rows) :]


def _sum_powers(ctx: Any, part: int, q: Tensor, mask: Any, k: Tensor, *others: Any) -> list[Tensor]:
    """Return the polynomial of A applied to v, and the inner sums of Horner's scheme."""
    A, steps = _form_map(ctx, part, q, mask, k)[2], ctx.options[2]
    v, *theta = (t.flatten(0, 1) for t in others)
    sums = horner_terms(A.bmm, v, theta, steps) if theta else [v, A.bmm(v) * steps[0][0]]
    return list(sums)[:0:-1]


def _add_gradients(ctx: Any, part: int, rows: Sequence[Any], others: Sequence[Any]) -> None:
    (scale, _, steps), (mask, dmask) = ctx.options, rows[-2:]
    A, kept, dropped = _form_map(ctx, part, rows[0], mask, others[0])
    q, g, dq, *inner = (t.flatten(0, 1) for t in rows[:-2])
    k, v, *theta = (t.flatten(0, 1) for t in others[: len(others) // 2])
    dk, dv, *dtheta = (t.flatten(0, 1) for t in others[len(others) // 2 :])
    # the gradients of Horner's sums are the polynomials of the basis, of A^T applied to g
    terms = list(basis_terms(steps, dropped.mT.bmm, g)) if theta else [g]
    inner, dA = [*inner, theta[-1] * v if theta else v], torch.empty_like(A)
    for i, (term, u, (a, _, _)) in enumerate(zip(terms, inner, steps, strict=False)):
        dA.baddbmm_(term, u.mT, beta=min(i, 1), alpha=a)
    dA = dA if kept is None else dA.mul_(kept)
    torch.ops.aten._softmax_backward_data.out(dA, A, -1, A.dtype, grad_input=dA)  # in place
    if dmask is not None:
        dmask.add_(dA.view(*rows[0].shape[:3], -1).sum_to_size(dmask.shape))
    dq.baddbmm_(dA, k, alpha=scale)
    dk.baddbmm_(dA.mT, q, alpha=scale)
    if not theta:
        dv.baddbmm_(dropped.mT, g, alpha=steps[0][0])
    for i, (term, dweight, weight) in enumerate(zip(terms, dtheta, theta, strict=False), 5):
        dv.addcmul_(weight, term)
        if ctx.needs_input_grad[i]:
            dweight.add_((term * v).sum((1, 2), keepdim=True))


def _form_map(ctx: Any, part: int, q: Tensor, mask: Tensor | None, k: Tensor) -> tuple[Any, ...]:
    """Form the same map each time: A, (maps, N, M), kept entries, and their product."""
    (scale, threshold, _), kept = ctx.options, None
    A = q.new_empty(q.shape[:2].numel(), q.shape[2], k.shape[2])
    A.baddbmm_(q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=scale)
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
        words.random_(-(2**63), None, generator=torch.Generator().manual_seed(ctx.seed + part))
        numbers = words.view(torch.int16)[: A.numel()].view(A.shape)
        drawn = numbers.ge_(threshold - RNG_LEVELS // 2).to(A.dtype)
        kept = drawn if kept is None else drawn.mul_(kept)
    return A, kept, A if kept is None else A * kept
