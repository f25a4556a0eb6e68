"""YOSO (Zeng et al. 2021), https://arxiv.org/abs/2111.09714"""

from collections.abc import Iterator
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
from attention_core.operators import LinearMap, identity_like

Gradient = Literal["exact", "surrogate"]
Rest = tuple[int, bool, int]  # tau, surrogate, block


class Angular(LinearMap):
    r"""The expected map of tau random hyperplanes, which is never formed as a whole.

    .. math:: A_{ij} = m_i m_j (1 - \arccos(q_i^\top k_j) / \pi)^\tau

    Shapes: q, k (B, H, N, d) with rows of length at most 1, mask m (B, 1, 1, N) boolean or None. An
    application takes O(N^2 d) time. `block` rows of the map exist at a time, also in the backward
    pass, which computes them again: O(N (d + block)) memory.

    Source: https://arxiv.org/abs/2111.09714
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        tau: int = 8,
        mask: Tensor | None = None,
        gradient: Gradient = "exact",
        block: int = 128,
    ) -> None:
        self.q, self.k, self.mask = q, k, mask
        self.rest: Rest = (tau, gradient == "surrogate", block)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the map block by block."""
        values = zero_padding(v.to(self.q.dtype), self.mask)
        z: Tensor = _BlockwiseMap.apply(self.q, self.k, values, self.rest)  # type: ignore[no-untyped-call]
        return zero_padding(z, self.mask).to(v.dtype)

    def eye(self) -> Tensor:
        """Return the identity as values, (B, H, N, N)."""
        return identity_like(self.q, self.k.shape[-2])


class _BlockwiseMap(torch.autograd.Function):
    """W v by a few rows of W at a time, which the backward pass computes again."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, rest: Rest) -> Tensor:
        tau, _, block = rest
        y = torch.empty_like(v)
        with autocast_disabled(q):
            for rows in _row_blocks(q, block):
                S = (q[..., rows, :] @ k.mT).clamp_(-1, 1)
                y[..., rows, :] = _raise(S.acos_().div_(-pi).add_(1), tau) @ v
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *operands, ctx.rest = inputs
        ctx.save_for_backward(*operands)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        tau, surrogate, block = ctx.rest
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        with autocast_disabled(q):
            for rows in _row_blocks(q, block):
                queries, grad = q[..., rows, :], g[..., rows, :]
                S = queries @ k.mT
                # the slope is 0 at an extremum, |S| = 1
                S = torch.where(S.abs() < 1, S, S.detach().sign())
                c = 1 - S.acos() / pi
                power = _raise(c, tau - 1)
                W = power * c
                dv += W.mT @ grad
                if surrogate:
                    slope = W * (tau / 2)
                else:  # 0 at |S| = 1, an extremum of W in q and k
                    slope = power * (tau / pi) * ((1 - S) * (1 + S)).rsqrt()
                    slope = slope.masked_fill(S.abs() >= 1, 0.0)
                dS = (grad @ v.mT) * slope
                dq[..., rows, :] = dS @ k
                dk += dS.mT @ queries
        return dq, dk, dv, None


def _raise(c: Tensor, power: int) -> Tensor:
    """Return c^power by squaring, as a general power takes longer than all products of the map."""
    if power < 2:
        return c if power else torch.ones_like(c)
    half = _raise(c, power // 2)
    return half * half * c if power % 2 else half * half


def _row_blocks(q: Tensor, block: int) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, q.shape[-2], block))


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
        gradient: `exact`, or the published `surrogate`, dA/dS := (tau / 2) A.
        block: Rows of the map that exist at a time.

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
        return Angular(self.scale * q, k, self.tau, valid, self.gradient, self.block)

    def postprocess(self, z: Tensor) -> Tensor:
        """Scale rows to length 1, as published; a row of zeros stays zero."""
        return F.normalize(at_least_float32(z), dim=-1).to(z.dtype)
