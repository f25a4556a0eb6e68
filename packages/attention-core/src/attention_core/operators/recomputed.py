"""Polynomials of a softmax map on a CPU: formed a few heads at a time, again for the gradient.

A polynomial of degree two takes 10 products where plain attention takes 7, in the memory of the
maps of a few heads; fused calls would compute the softmax for each power. One application, of a
map with dropout or a learned bias, needs a few rows at a time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_core.operators.base import is_traced
from attention_core.operators.polynomial import Step, basis_terms, horner_terms

CHUNK_NUMEL = 2**18  # entries of the maps that are formed together: 1 MiB fits the cache
RNG_LEVELS = 2**16  # an entry is dropped by a random number of 16 bits
LOG2_E = 1 / math.log(2)  # logits have base two: exp2 takes a quarter of the time of exp
Chunk = tuple[slice, ...]  # samples, heads and rows; all rows of a map that is applied repeatedly


class MapOptions(NamedTuple):
    """The arguments of a map that have no gradient, and the steps of the polynomial."""

    scale: float
    threshold: int  # an entry is dropped with probability threshold / 2^16
    factor: float  # 1 / (1 - p)
    seed: int  # the same entries are dropped in both passes
    steps: Sequence[Step]


def can_recompute(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True for self-attention in single or double precision, outside of transforms."""
    fits = q.ndim == 4 and q.shape == k.shape and q.shape[:3] == v.shape[:3] and q.numel() > 0
    is_wide = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    is_plain_call = not is_traced() and not torch.is_autocast_enabled("cpu")
    return fits and is_wide and is_plain_call and q.device.type == "cpu"


def apply_recomputed(
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    scale: float,
    dropout: float,
    coefficients: Sequence[Tensor],
    steps: Sequence[Step],
) -> Tensor:
    r"""Apply a polynomial of a softmax map to values, with one dropout mask for all powers.

    .. math:: A = \frac{1}{1 - p} \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})
        \odot M, \qquad M_{ij} \sim \mathrm{Bernoulli}(1 - p)

    p is rounded to a multiple of 2^-16. The seed of M comes from torch's global generator. Without
    coefficients it is A v.

    Shapes: operands are q and k (B, H, N, D), v (B, H, N, E), and None or a mask that
    broadcasts to (B, H, N, N); a coefficient is (H, 1, 1) -> (B, H, N, E).
    """
    q, k, v, mask = operands
    if mask is not None:
        mask = mask.to(q.dtype).log_() if mask.dtype == torch.bool else mask  # 0 or -inf
        mask = mask[(None,) * (4 - mask.ndim)]
    theta = [c.expand(*q.shape[:2], 1, 1) for c in coefficients]
    threshold = round(dropout * RNG_LEVELS)
    factor = RNG_LEVELS / (RNG_LEVELS - threshold) if threshold < RNG_LEVELS else 0.0
    seed = int(torch.randint(2**63 - 1, ())) if threshold else 0
    options = MapOptions(scale, threshold, factor, seed, steps)
    return _Recomputed.apply(options, q, k, v, mask, *theta)  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    """Compute sum_k theta_k T_k(A) v, or A v, and its gradient from A formed again."""

    @staticmethod
    def forward(ctx: Any, options: MapOptions, *inputs: Any) -> Tensor:
        q, k, v, mask, *theta = inputs
        # (B, N, H, E) is the layout that a host's next projection reads
        y = v.new_empty(v.transpose(1, 2).shape).transpose(1, 2)
        saved = [v.new_empty(v.shape) for _ in options.steps[1:] if any(ctx.needs_input_grad)]
        norms = q.new_empty(*q.shape[:3], 1)
        for chunk, A, kept, *_ in _form_maps(options, q, k, mask):
            top = A.amax(-1, keepdim=True)
            top.masked_fill_(top == -torch.inf, 0.0)  # a row that may attend to nothing is zero
            total = A.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=torch.finfo(A.dtype).tiny)
            torch.add(total.log2(), top, out=_take(norms, chunk))
            A.div_(total)
            values, *weights = (_take(t, chunk[:2]) for t in (v, *theta))
            apply = _multiply_by(A if kept is None else kept.mul_(A), options.factor)
            sums = list(horner_terms(apply, values, weights, options.steps)) if theta else []
            parts = reversed(sums or [apply(values)])
            for whole, part in zip([y, *reversed(saved)], parts, strict=False):
                whole[chunk] = part.view(whole[chunk].shape)
        ctx.options, ctx.num_inputs = options, len(inputs)
        ctx.save_for_backward(*inputs, norms, *saved)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # checkpointing allows one access
        inputs, saved = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
        # with create_graph, autograd differentiates the equation
        differentiate = _differentiate_equation if torch.is_grad_enabled() else _differentiate
        with torch.autocast("cpu", enabled=False):  # which may be on where backward is called
            return None, *differentiate(ctx.options, inputs, ctx.needs_input_grad[1:], g, *saved)


def _differentiate(
    options: MapOptions, inputs: Sequence[Any], needed: Sequence[bool], g: Tensor, *saved: Tensor
) -> list[Tensor | None]:
    (q, k, v, mask, *theta), (norms, *saved_sums) = inputs, saved
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    dtheta = [t.new_empty(t.shape) if n else None for t, n in zip(theta, needed[4:], strict=True)]
    dmask = torch.zeros_like(mask) if needed[3] else None
    for chunk, A, kept, dA, queries, keys in _form_maps(options, q, k, mask):
        A.sub_(_take(norms, chunk)).exp2_()
        values, *weights = (_take(t, chunk[:2]) for t in (v, *theta))
        grad, *sums = (_take(t, chunk) for t in (g, *reversed(saved_sums)))
        transposed, terms = (A if kept is None else A * kept).mT, [grad]
        inner = [*sums, weights[-1] * values if theta else values]
        if theta:
            # the gradients of Horner's sums are the polynomials of the basis, of A^T applied to g
            apply = _multiply_by(transposed, options.factor)
            terms = list(basis_terms(options.steps, apply, grad))
        for i, (term, u, (a, _, _)) in enumerate(zip(terms, inner, options.steps, strict=False)):
            dA.baddbmm_(term, u.mT, beta=min(i, 1), alpha=a * options.factor)
        dA = dA if kept is None else dA.mul_(kept)
        # in place: one pass over the map
        torch.ops.aten._softmax_backward_data.out(dA, A, -1, A.dtype, grad_input=dA)
        _take(dq, chunk).baddbmm_(dA, keys, beta=0, alpha=options.scale)
        beta = min(chunk[2].start, 1)  # the first rows of a map start the sums over its rows
        _take(dk, chunk[:2]).baddbmm_(dA.mT, queries, beta=beta, alpha=1 / LOG2_E)
        total = _take(dv, chunk[:2])
        if theta:
            torch.mul(weights[0], grad, out=total)
        else:
            total.baddbmm_(transposed, grad, beta=beta, alpha=options.factor)
        for weight, term in zip(weights[1:], terms[1:], strict=True):
            total.addcmul_(weight, term)
        for whole, term in zip(dtheta, terms, strict=False):
            if whole is not None:
                torch.sum(term * values, (1, 2), keepdim=True, out=_take(whole, chunk))
        if dmask is not None:
            part = _select(dmask, chunk)
            part += dA.view(*q[chunk].shape[:3], -1).sum_to_size(part.shape)
    return [dq, dk, dv, dmask, *dtheta]


def _form_maps(
    options: MapOptions, q: Tensor, k: Tensor, mask: Tensor | None
) -> Iterator[tuple[Chunk, Tensor, Tensor | None, Tensor, Tensor, Tensor]]:
    """Yield chunk, logits, kept entries, space, scaled queries and keys, in memory used again."""
    generator, chunks = torch.Generator().manual_seed(options.seed), _list_chunks(options, q.shape)
    size = (*_take(q, chunks[0]).shape[:2], q.shape[2])
    maps, space, draws = (q.new_empty(size) for _ in range(3))
    words = torch.empty(-(-draws.numel() // 4), dtype=torch.int64)
    for chunk in chunks:
        queries, keys = _take(q, chunk).mul(options.scale * LOG2_E), _take(k, chunk[:2])
        count, rows, _ = queries.shape
        A = torch.bmm(queries, keys.mT, out=maps[:count, :rows])
        if mask is not None:
            A.view(*q[chunk].shape[:3], q.shape[2]).add_(_select(mask, chunk), alpha=LOG2_E)
        kept = None
        if options.threshold:
            # a number of 64 bits makes four entries, 7 times as fast as torch's dropout; without
            # bounds, `random_` never sets the sign bit, which every fourth entry uses
            kept = draws[:count, :rows]
            drawn = words[: -(-kept.numel() // 4)].random_(-(2**63), None, generator=generator)
            numbers = drawn.view(torch.int16)[: kept.numel()].view(kept.shape)
            kept.copy_(numbers.ge_(options.threshold - RNG_LEVELS // 2))
        yield chunk, A, kept, space[:count, :rows], queries, keys


def _list_chunks(options: MapOptions, shape: torch.Size) -> list[Chunk]:
    """List some samples with all of their heads, some heads of one sample, or rows of one head."""
    B, H, N, _ = shape
    heads = min(H, max(1, CHUNK_NUMEL // N**2))
    samples = max(1, CHUNK_NUMEL // (N**2 * H))
    sizes, counts = [B, H, N], [samples, heads, N]
    if len(options.steps) == 1 and N**2 > CHUNK_NUMEL:
        counts[2] = max(1, CHUNK_NUMEL // N)
    ranges = [
        [slice(start, min(start + count, size)) for start in range(0, size, count)]
        for size, count in zip(sizes, counts, strict=True)
    ]
    return [*product(*ranges)]


def _take(t: Tensor, chunk: Chunk) -> Tensor:
    """Return the rows of a chunk, (maps, N, D): a copy of a strided tensor, else a view."""
    return t[chunk].contiguous().flatten(0, 1)


def _select(mask: Tensor, chunk: Chunk) -> Tensor:
    """Return the part of a mask for a chunk: an axis of one entry stays as it is."""
    return mask[tuple(s if n > 1 else slice(None) for n, s in zip(mask.shape, chunk, strict=False))]


def _multiply_by(a: Tensor, factor: float) -> Callable[[Tensor], Tensor]:
    """Return the product with factor times a; the factor costs no pass over the operands."""
    return partial(torch.baddbmm, a[:, :, :1], a, beta=0, alpha=factor)


def _differentiate_equation(
    options: MapOptions, inputs: Sequence[Any], needed: Sequence[bool], g: Tensor, *saved: Tensor
) -> list[Tensor | None]:
    """Compute the gradients by autograd, so that they can be differentiated again."""
    # views, whose gradients are their own: an operand may be another one, or be computed from it
    inputs = [t if t is None else t.view_as(t) for t in inputs]
    q, k, v, mask, *theta = inputs
    logits = q @ k.mT * options.scale if mask is None else q @ k.mT * options.scale + mask
    is_empty = (logits == -torch.inf).all(-1, keepdim=True)
    A = logits.masked_fill(is_empty, 0.0).softmax(-1) * ~is_empty
    if options.threshold:
        factors = torch.empty_like(A.detach())
        for chunk, _, kept, *_ in _form_maps(options, q.detach(), k.detach(), None):
            factors[chunk] = kept.view(factors[chunk].shape)  # type: ignore[union-attr]
        A = A * factors * options.factor
    *_, y = horner_terms(A.__matmul__, v, theta, options.steps) if theta else [A @ v]
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return [next(found) if need else None for need in needed]
