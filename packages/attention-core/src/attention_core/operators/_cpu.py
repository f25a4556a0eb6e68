"""The CPU path of `Softmax`: form the map once, apply it K times, keep it for the gradient.

On a CPU, every fused call computes the softmax again, and with dropout or a learned bias it forms
the whole map. Here the map is formed once. Fused calls still serve larger maps, so that memory
stays linear in N, and half precision, autocast, torch.compile and torch.func. A GPU never uses this
module.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_core.operators.base import MASK_THRESHOLD
from attention_core.operators.polynomial import Step, basis_terms, combine_step

MAX_MAP_NUMEL = 2**24  # entries of the maps of a batch that are formed: 64 MiB in float32
BLOCK_NUMEL = 2**18  # entries of a block, which has at least one map: 1 MiB fits the cache
RNG_LEVELS = 2**16  # an entry is dropped by a random number of 16 bits


class MapOptions(NamedTuple):
    """The arguments of a map that have no gradient, and the steps of the polynomial."""

    is_causal: bool
    scale: float
    dropout_mask: Tensor | None  # (B, H, N, M), 1 where an entry stays and 0 where it is dropped
    factor: float  # 1 / (1 - p)
    steps: Sequence[Step]


class Block(NamedTuple):
    """Some samples with all of their heads, or some heads of one sample."""

    samples: slice
    heads: slice

    def select(self, t: Tensor) -> Tensor:
        """Return a view of the block of a tensor; dimensions that broadcast stay as they are."""
        if t.ndim == 4 and t.shape[0] > 1:
            t = t[self.samples]
        return t[..., self.heads, :, :] if t.ndim >= 3 and t.shape[-3] > 1 else t

    def select_optional(self, t: Tensor | None) -> Tensor | None:
        """Return a view of the block, or None where there is no tensor."""
        return None if t is None else self.select(t)


def can_form(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Return True where this module supports the operands, even if fused calls are faster."""
    return (
        not torch.compiler.is_compiling()
        # a trace records no write into a new tensor, and the sizes in it are tensors
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        and q.device.type == k.device.type == v.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.float32, torch.float64)
        and q.ndim == k.ndim == v.ndim == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and (q.shape[3], k.shape[2]) == (k.shape[3], v.shape[2])
        and q.shape[:3].numel() * k.shape[2] <= MAX_MAP_NUMEL
        and (mask is None or (mask.device.type == "cpu" and mask.dtype in (torch.bool, q.dtype)))
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


def apply_formed(
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    is_causal: bool,
    scale: float,
    dropout: float,
    theta: Sequence[Tensor] = (),
    steps: Sequence[Step] = ((1.0, 0.0, 0.0),),
) -> Tensor:
    r"""Form a map, drop some of its entries, and apply a polynomial of it to values.

    .. math:: A = \frac{1}{1 - p} \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})
        \odot M, \qquad M_{ij} \sim \mathrm{Bernoulli}(1 - p)

    p is rounded to a multiple of 2^-16. Without weights theta the result is A v.

    Shapes: operands are q (B, H, N, D), k (B, H, M, D), v (B, H, M, E), and None or a mask that
    broadcasts to (B, H, N, M); theta_k is (H, 1, 1) -> (B, H, N, E).
    """
    # once for both passes, since products with strided tensors are slow; autograd tracks the copies
    q, k, v = (t.contiguous() for t in operands[:3])
    shape, threshold = torch.Size((*q.shape[:3], k.shape[2])), round(dropout * RNG_LEVELS)
    dropout_mask = draw_dropout_mask(shape, threshold) if threshold else None
    factor = RNG_LEVELS / (RNG_LEVELS - threshold) if threshold < RNG_LEVELS else 0.0
    options = MapOptions(is_causal, scale, dropout_mask, factor, steps)
    y: Tensor = _FormedPolynomial.apply(q, k, v, operands[3], options, *theta)  # type: ignore[no-untyped-call]
    return y.transpose(1, 2)


def draw_dropout_mask(shape: torch.Size, threshold: int) -> Tensor:
    """Draw zeros with probability threshold / 2^16, else ones, as int16.

    One random number of 64 bits makes four entries, which is 7 times as fast as torch's dropout.
    The seed is drawn from torch's global generator, so that `torch.manual_seed` repeats the mask.
    """
    generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ())))
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64)
    # all 64 bits: without bounds, `random_` never sets the sign bit, which every fourth entry uses
    numbers = words.random_(-(2**63), None, generator=generator).view(torch.int16)
    return numbers[: shape.numel()].view(shape).ge_(threshold - RNG_LEVELS // 2)


def list_blocks(shape: torch.Size) -> Iterator[Block]:
    """Yield blocks of maps (B, H, N, M) of about `BLOCK_NUMEL` entries, or of one map."""
    numel = shape[2] * shape[3]
    num_samples = _divide_evenly(shape[0], numel * shape[1])
    num_heads = _divide_evenly(shape[1], numel) if num_samples == 1 else max(1, shape[1])
    for sample in range(0, shape[0], num_samples):
        for head in range(0, shape[1], num_heads):
            yield Block(slice(sample, sample + num_samples), slice(head, head + num_heads))


def _divide_evenly(count: int, numel: int) -> int:
    """Return how many of `count` items of `numel` entries make a block, all blocks alike."""
    num_blocks = min(count, round(count * numel / BLOCK_NUMEL))
    return -(-count // max(1, num_blocks)) or 1


class _FormedPolynomial(torch.autograd.Function):
    """Compute sum_k theta_k T_k(A) v as (B, N, H, E), and its gradient from the saved A."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        options: MapOptions,
        *theta: Tensor,
    ) -> Tensor:
        is_trained = any(ctx.needs_input_grad)
        shape = torch.Size((*q.shape[:3], k.shape[2]))
        # (B, N, H, E) is the layout that a host's next projection reads
        y = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])
        maps = v.new_empty(shape) if is_trained else None
        saved = [v.new_empty(v.shape) for _ in options.steps[1:]] if is_trained else []
        bias = _build_bias(shape, q.dtype, mask, options.is_causal)
        for block in list_blocks(shape):
            A = _softmax_map(block.select(q) * options.scale, block.select(k), bias, block, maps)
            dropped = _drop(A, block.select_optional(options.dropout_mask))
            apply = partial(_multiply, dropped, factor=options.factor)
            terms = list(basis_terms(options.steps, apply, block.select(v)))
            for whole, term in zip(saved, terms[1:], strict=False):
                block.select(whole).copy_(term)
            weights = [block.select(weight) for weight in theta]
            _write_sum(terms, weights, out=block.select(y.transpose(1, 2)))
        ctx.options, ctx.num_weights = options, len(theta)
        ctx.save_for_backward(q, k, v, mask, maps, *theta, *saved)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, maps, *rest = ctx.saved_tensors
        theta, saved = rest[: ctx.num_weights], rest[ctx.num_weights :]
        options: MapOptions = ctx.options
        if torch.is_grad_enabled():  # with create_graph, autograd differentiates the equation
            return _differentiate_equation(
                (q, k, v, mask, *theta), options, g, ctx.needs_input_grad
            )
        dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
        is_full = mask is not None and mask.shape == maps.shape
        dmask = None
        if ctx.needs_input_grad[3]:
            dmask = (mask.new_empty if is_full else mask.new_zeros)(mask.shape)
        dtheta = [torch.zeros_like(weight) for weight in theta]
        g = g.transpose(1, 2)
        with torch.autocast("cpu", enabled=False):  # which may be on where backward is called
            for block in list_blocks(maps.shape):
                A, terms = block.select(maps), [block.select(t) for t in (v, *saved)]
                weights = [block.select(weight) for weight in theta]
                dlogits, dvalues, dweights = _differentiate_map(
                    A,
                    options._replace(dropout_mask=block.select_optional(options.dropout_mask)),
                    terms,
                    weights,
                    block.select(g).contiguous(),
                    out=block.select_optional(dmask) if is_full else None,
                )
                _multiply(dlogits, block.select(k) * options.scale, out=block.select(dq))
                _multiply(dlogits.mT, block.select(q) * options.scale, out=block.select(dk))
                block.select(dv).copy_(dvalues)
                for total, dweight in zip(dtheta, dweights, strict=True):
                    block.select(total).add_(dweight)
                if dmask is not None and not is_full:
                    part = block.select(dmask)
                    part += dlogits.sum_to_size(part.shape)
        return dq, dk, dv, dmask, None, *dtheta


def _build_bias(
    shape: torch.Size, dtype: torch.dtype, mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """Return mask and causality as one bias of the logits; from a boolean mask it is finite."""
    lowest = torch.finfo(dtype).min
    bias = None
    if mask is not None:
        # sub and mul of a boolean mask are several times as fast as a fill
        bias = mask.to(dtype).sub_(1).mul_(-lowest) if mask.dtype == torch.bool else mask
    if is_causal:
        future = torch.full(shape[2:], lowest, dtype=dtype).triu_(1)
        bias = future if bias is None else (bias + future).clamp_(min=lowest)
    return bias


def _softmax_map(
    q: Tensor, k: Tensor, bias: Tensor | None, block: Block, maps: Tensor | None
) -> Tensor:
    """Form softmax(q k^T + bias) of a block; a row that may attend to nothing is zero.

    Writes to the block of `maps` and returns it; without `maps`, returns a new tensor.
    """
    logits = q.new_empty(*q.shape[:3], k.shape[2]) if maps is None else block.select(maps)
    factors, out = (q.flatten(0, 1), k.flatten(0, 1).mT), logits.flatten(0, 1)
    part = block.select_optional(bias)
    if part is not None and part.shape == logits.shape:
        torch.baddbmm(part.flatten(0, 1), *factors, out=out)  # adds the bias within the product
    else:
        torch.bmm(*factors, out=out)
    if part is None:
        return _softmax_in_place(logits)
    if part.shape != logits.shape:
        logits += part
    if (part[..., :1] > MASK_THRESHOLD).all():  # every row may attend to its first key
        return _softmax_in_place(logits)
    logits.clamp_(min=torch.finfo(logits.dtype).min)
    return _softmax_in_place(logits).mul_(part.amax(-1, keepdim=True) > MASK_THRESHOLD)


def _softmax_in_place(logits: Tensor) -> Tensor:
    """Replace logits by their softmax over the last dimension."""
    return torch.softmax(logits, -1, out=logits)


def _drop(A: Tensor, dropout_mask: Tensor | None) -> Tensor:
    """Return a map with its dropped entries set to zero."""
    return A if dropout_mask is None else dropout_mask.to(A.dtype).mul_(A)


def _multiply(a: Tensor, b: Tensor, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Return factor times a b; the factor costs no pass over the operands or the product."""
    if out is None:
        out = a.new_empty(*a.shape[:3], b.shape[3])
    whole = out.flatten(0, 1)
    torch.baddbmm(whole, a.flatten(0, 1), b.flatten(0, 1), beta=0, alpha=factor, out=whole)
    return out


def _write_sum(terms: Sequence[Tensor], theta: Sequence[Tensor], out: Tensor) -> None:
    """Write the sum of theta_k times term k to `out`; without weights, the last term."""
    if not theta:
        out.copy_(terms[-1])
        return
    torch.mul(theta[0], terms[0], out=out)
    for weight, term in zip(theta[1:], terms[1:], strict=True):
        out.addcmul_(weight, term)


def _differentiate_map(
    A: Tensor,
    options: MapOptions,
    terms: Sequence[Tensor],
    theta: Sequence[Tensor],
    g: Tensor,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""Compute the gradients of the logits, in `out` if it is given, of v and of theta.

    .. math:: dA = \sum_k a_k \, dT_k T_{k-1}^\top, \qquad
        d\mathrm{logits} = A \odot (dA - \mathrm{rowsum}(A \odot dA))

    Shapes: A (B, H, N, M), g (B, H, N, E), terms 0 to K - 1 of the basis (B, H, M, E).
    """
    steps, mask = options.steps, options.dropout_mask
    mask = None if mask is None else mask.to(A.dtype)  # once for both of its uses
    dropped = A if mask is None else A * mask
    apply = partial(_multiply, dropped.mT, factor=options.factor)
    if theta:
        dterms, dtheta = _differentiate_terms(apply, steps, terms, theta, g)
        dv = dterms.pop()
    else:
        dterms, dtheta = [g], []
        dv = apply(g)
    left = [a * d if a != 1 else d for (a, _, _), d in zip(steps[::-1], dterms, strict=True)]
    # one product for all steps: products over few columns are slow
    dT, T = (torch.cat(left, -1), torch.cat(list(terms[::-1]), -1)) if theta else (g, terms[0])
    dA = _multiply(dT, T.mT, options.factor, out)
    if mask is not None:
        dA.mul_(mask)
    # torch's own function for the gradient of softmax, in place: one pass over the map, not three
    torch.ops.aten._softmax_backward_data.out(dA, A, -1, A.dtype, grad_input=dA)
    return dA, dv, dtheta


def _differentiate_terms(
    apply: Callable[[Tensor], Tensor],
    steps: Sequence[Step],
    terms: Sequence[Tensor],
    theta: Sequence[Tensor],
    g: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute the gradients of the terms, last first, and of theta, by the recurrence backwards.

    `apply` multiplies by the transposed map.

    Source: https://doi.org/10.1090/S0025-5718-1955-0071856-0 (Clenshaw's recurrence)
    """
    a, b, c = steps[-1]
    # <g, T_K v> follows from A^T g, which the recurrence needs anyway: one application of A less
    last = combine_step((a, b, 0.0), apply(g), g, g)
    dtheta = [(g * term).sum_to_size(w.shape) for w, term in zip(theta, terms, strict=False)]
    dtheta.append((last * terms[-1]).sum_to_size(theta[-1].shape))
    if c:
        dtheta[-1] -= c * (g * terms[-2]).sum_to_size(theta[-1].shape)
    dterms = [theta[-1] * g, torch.addcmul(theta[-1] * last, theta[-2], g)]
    for i in range(len(steps) - 2, -1, -1):
        step = (*steps[i][:2], steps[i + 1][2])
        dterms.append(theta[i] * g + combine_step(step, apply(dterms[-1]), *dterms[:-3:-1]))
    return dterms, dtheta


def _differentiate_equation(
    inputs: Sequence[Any], options: MapOptions, g: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Compute the gradients by autograd, so that they can be differentiated again."""
    q, k, v, mask, *theta = inputs
    logits = (q * options.scale) @ k.mT
    bias = _build_bias(logits.shape, q.dtype, mask, options.is_causal)
    if bias is not None:
        logits = (logits + bias).clamp(min=torch.finfo(q.dtype).min)
    A = logits.softmax(-1)
    if bias is not None:
        A = A * (bias.amax(-1, keepdim=True) > MASK_THRESHOLD)
    if options.dropout_mask is not None:
        A = A * (options.dropout_mask * options.factor)
    terms = list(basis_terms(options.steps, A.__matmul__, v))
    if theta:
        terms = [weight * term for weight, term in zip(theta, terms, strict=True)]
    y = torch.stack(terms).sum(0) if theta else terms[-1]
    needed = [*needed[:4], *needed[5:]]  # the fifth argument is the options
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(y.transpose(1, 2), wanted, g, create_graph=True))
    grads = [next(found) if need else None for need in needed]
    return *grads[:4], None, *grads[4:]
