"""YOSO (Zeng et al. 2021), https://arxiv.org/abs/2111.09714"""

from collections.abc import Iterator
from itertools import product
from math import pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_choices, check_numbers, check_positive, check_sizes
from attention_core.kernels.common import (
    Kernel,
    at_least_float32,
    autocast_disabled,
    key_mask,
    zero_padding,
)
from attention_core.operators import LinearMap, is_traced
from attention_core.operators.recomputed import CHUNK_NUMEL

Gradient = Literal["exact", "surrogate"]
Options = tuple[int, bool, int]  # tau, surrogate, block


class Angular(LinearMap):
    r"""The expected map of tau random hyperplanes, of which a few rows exist at a time.

    .. math:: A_{ij} = m_i m_j (1 - \arccos(q_i^\top k_j) / \pi)^\tau

    Shapes: q, k (B, H, N, d) with rows of length at most 1, mask m (B, 1, 1, N) boolean or None.
    """

    def __init__(self, q: Tensor, k: Tensor, mask: Tensor | None, options: Options) -> None:
        self.q, self.k, self.mask, self.options, self.like = q, k, mask, options, k

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the map block by block; in a trace, which fits batches of any size, as a whole."""
        values = zero_padding(v.to(self.q.dtype), self.mask)
        with autocast_disabled(values):
            if is_traced():
                z = _form_map(self.q, self.k, *self.options[:2]) @ values
            else:
                operands = (t.flatten(0, 1) for t in (self.q, self.k, values))
                z = _BlockwiseMap.apply(*operands, self.options)  # type: ignore[no-untyped-call]
        return zero_padding(z.view(values.shape), self.mask).to(v.dtype)


def _form_map(q: Tensor, k: Tensor, tau: int, surrogate: bool = False) -> Tensor:
    S = q @ k.mT
    is_inside = S.abs() < 1  # else W has an extremum in q and k, and its slope is 0
    W = (1 - torch.where(is_inside, S, 0.0).acos() / pi) ** tau
    W = torch.where(is_inside, W, (S > 0).to(S.dtype))
    return W.detach() * (tau / 2 * (S - S.detach())).exp() if surrogate else W


class _BlockwiseMap(torch.autograd.Function):
    """W v by a few rows of a few maps at a time, which the backward pass forms again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        ctx.options, (tau, _, block) = options, options
        ctx.save_for_backward(q, k, v)
        y = torch.empty_like(v)
        for maps, rows, (angle, power, _) in _iterate_blocks(q, k, block):
            torch.bmm(-q[maps, rows], k[maps].mT, out=angle).clamp_(-1, 1).acos_()
            y[maps, rows] = torch.bmm(_compute_power(angle, tau, power), v[maps]).mul_(pi**-tau)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        tau, surrogate, block = ctx.options
        if torch.is_grad_enabled():  # with create_graph, autograd differentiates the equation
            q, k, v = (t.view_as(t).requires_grad_() for t in (q, k, v))
            with autocast_disabled(q):
                y = _form_map(q, k, tau, surrogate) @ v
                return *torch.autograd.grad(y, (q, k, v), g, create_graph=True), None
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        factor = tau / 2 if surrogate else tau
        for maps, rows, (S, angle, power) in _iterate_blocks(q, k, block):
            queries, grad = q[maps, rows], g[maps, rows] * pi**-tau
            S.baddbmm_(queries, k[maps].mT, beta=0, alpha=-1).clamp_(-1, 1)
            _compute_power(torch.acos(S, out=angle), tau, power)
            dv[maps].baddbmm_(power.mT, grad)
            if not surrogate:
                root = torch.addcmul(q.new_ones(()), S, S, value=-1, out=S).sqrt_()
                # the slope is 0 at an extremum
                power.div_(F.threshold(angle.mul_(root), 0.0, torch.inf, inplace=True))
            dS = S.baddbmm_(grad, v[maps].mT, beta=0).mul_(power)
            dq[maps, rows].baddbmm_(dS, k[maps], beta=0, alpha=factor)
            dk[maps].baddbmm_(dS.mT, queries, alpha=factor)
        return dq, dk, dv, None


def _compute_power(x: Tensor, power: int, out: Tensor) -> Tensor:
    """Write x^power by squaring: a general power takes longer than all products of the map."""
    out.copy_(x)
    for bit in bin(power)[3:]:
        out.square_()
        if bit == "1":
            out.mul_(x)
    return out


def _iterate_blocks(q: Tensor, k: Tensor, block: int) -> Iterator[tuple[slice, slice, Any]]:
    """Yield maps, at most `block` of their rows, and space for them: on a CPU, in its cache."""
    maps, N, M = *q.shape[:2], max(1, k.shape[1])
    numel = CHUNK_NUMEL if q.device.type == "cpu" else maps * block * M  # a GPU takes all maps
    height = max(1, min(block, N, numel // M))
    count = max(1, min(maps, numel // (height * M)))
    space = [q.new_empty(count, height, k.shape[1]) for _ in range(3)]
    for first, row in product(range(0, maps, count), range(0, N, height)):
        n, rows = min(count, maps - first), min(height, N - row)
        yield slice(first, first + n), slice(row, row + rows), [t[:n, :rows] for t in space]


class YOSO(Kernel):
    r"""Attention by the probability that random hyperplanes agree on a pair: YOSO-E.

    .. math::
        A_{ij} = m_i m_j \left(1 - \frac{\arccos(c\, \hat q_i^\top \hat k_j)}{\pi}\right)^\tau,
        \qquad z \leftarrow z / |z|

    with q and k of length 1; `postprocess` scales the filtered rows to length 1. Where q and k
    coincide, the slope of the arccosine is infinite, but the map has its maximum: the gradient
    there is 0. The published code's optional convolution of the values acts behind the
    normalization, where a kernel has no values: it is left out.

    Shapes: those of `Kernel`, x unused. Time O(N^2 d), since this is the expectation of the
    linear-time estimator; memory O(N (d + block)), in float32 or float64.

    Source: https://arxiv.org/abs/2111.09714

    Args:
        tau: Number of hyperplanes.
        scale: c, 1 in the published code, 0.98 in its second version.
        gradient: `exact`, or the published `surrogate`, dA/dS := (tau / 2) A, in all orders.
        block: Largest number of rows of a map that exist at a time; a trace forms all.

    >>> q = torch.randn(1, 2, 5, 4)
    >>> YOSO(8, 2)(q, q, None).dense().diagonal(dim1=-2, dim2=-1).round(decimals=2).unique()
    tensor([1.])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        tau: int = 8,
        scale: float = 1.0,
        gradient: Gradient = "exact",
        block: int = 128,
    ) -> None:
        super().__init__(dim, num_heads)
        check_sizes("YOSO", tau=tau, block=block)
        check_positive("YOSO", scale=scale)
        check_numbers("YOSO", 0, 1, scale=scale)
        check_choices("YOSO", gradient=(gradient, Gradient))
        self.tau, self.scale, self.gradient, self.block = tau, scale, gradient, block

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Angular:
        """Compute the map of these tokens."""
        valid = key_mask(mask, q, k)
        q, k = (F.normalize(at_least_float32(t), dim=-1) for t in (q, k))
        options = (self.tau, self.gradient == "surrogate", self.block)
        return Angular(self.scale * q, k, valid, options)

    def postprocess(self, z: Tensor) -> Tensor:
        """Scale rows to length 1, as published; a row of zeros stays zero."""
        return F.normalize(at_least_float32(z), dim=-1).to(z.dtype)
