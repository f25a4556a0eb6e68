"""YOSO (Zeng et al. 2021), https://arxiv.org/abs/2111.09714"""

from collections.abc import Iterator
from math import pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attention_core.kernels.parts import choose, exact, key_mask, real, wide
from attention_core.operators import identity, masked_mean

Gradient = Literal["exact", "surrogate"]
Rest = tuple[int, bool, int]  # tau, surrogate, block


def agreement(S: Tensor) -> Tensor:
    r"""The probability that a random hyperplane has two vectors of cosine S on the same side.

    .. math:: 1 - \arccos(S) / \pi

    Shapes: S any, clamped to [-1, 1].

    Source: https://arxiv.org/abs/2111.09714

    >>> agreement(torch.tensor([1.0, 0.0, -1.0]))
    tensor([1.0000, 0.5000, 0.0000])
    """
    return 1 - S.clamp(-1, 1).acos() / pi


class Angular:
    r"""The expected map of tau random hyperplanes, never held as a whole.

    .. math:: A_{ij} = m_i m_j (1 - \arccos(q_i^\top k_j) / \pi)^\tau

    Shapes: q, k (B, H, N, d) of rows no longer than 1, mask m (B, 1, 1, N) boolean or None. Each
    application takes O(N^2 d) time; `block` rows of the map exist at a time, for the gradient
    too, which computes them again: O(N (d + block)) memory.

    Source: https://arxiv.org/abs/2111.09714

    >>> Angular(torch.eye(2)[None, None], torch.eye(2)[None, None], tau=2).dense()
    tensor([[[[1.0000, 0.2500],
              [0.2500, 1.0000]]]])
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
        """Sum the values by how often they meet."""
        values = real(v.to(self.q.dtype), self.mask)
        z: Tensor = _Blocks.apply(self.q, self.k, values, self.rest)  # type: ignore[no-untyped-call]
        return real(z, self.mask).to(v.dtype)

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, N): O(N^2) memory, for looking at it."""
        return self @ self.eye()

    def eye(self) -> Tensor:
        """The identity as values, (B, H, N, N)."""
        return identity(self.q, self.k.shape[-2])


class _Blocks(torch.autograd.Function):
    """W v without W: a few rows of W at a time, and again for the gradient."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, rest: Rest) -> Tensor:
        tau, _, block = rest
        y = torch.empty_like(v)
        with exact(q):
            for rows in _rows(q, block):
                y[..., rows, :] = agreement(q[..., rows, :] @ k.mT).pow_(tau) @ v
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *operands, ctx.rest = inputs
        ctx.save_for_backward(*operands)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        tau, surrogate, block = ctx.rest
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        with exact(q):
            for rows in _rows(q, block):
                queries, grad = q[..., rows, :], g[..., rows, :]
                S = queries @ k.mT
                c = agreement(S)
                W = c**tau
                dv += W.mT @ grad
                dS = (grad @ v.mT) * (W * (tau / 2) if surrogate else _slope(S, c, tau))
                dq[..., rows, :] = dS @ k
                dk += dS.mT @ queries
        return dq, dk, dv, None


def _slope(S: Tensor, c: Tensor, tau: int) -> Tensor:
    """dW/dS, and 0 at the ends: there a turn of q or k in any direction has the same effect."""
    slope = c ** (tau - 1) * (tau / pi) * ((1 - S) * (1 + S)).rsqrt()
    return slope.masked_fill_(S.abs() >= 1, 0.0)


def _rows(q: Tensor, block: int) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, q.shape[-2], block))


class YOSO(nn.Module):
    r"""Attention by how probably random hyperplanes agree on a pair: YOSO-E, its expectation.

    .. math::
        A_{ij} = m_i m_j \left(1 - \frac{\arccos(c\, \hat q_i^\top \hat k_j)}{\pi}\right)^\tau,
        \qquad z \leftarrow z / |z|

    with q and k of length 1, and the rows of what the filter puts out too (`readout`). `scale` is
    c: 1 in the published code, 0.98 in its second version. Where a pair coincides the arccosine's
    slope is infinite, but the map's maximum: its gradient is taken as 0. gradient="surrogate" is
    the published one, dA/dS := (tau / 2) A. The optional convolution of the values comes behind
    the normalisation in the published code, where a kernel has no values: it is left out.

    Shapes: q, k (B, H, N, d), x unused, mask (B, N) or (B, 1, 1, N), True where a token is real.
    Time O(N^2 d), as it is the reference of the linear-time estimator; memory O(N (d + block)),
    in float32 at least; never causal. Padding equals truncation, and its rows are zero.

    Raises ValueError for an unknown gradient, tau or block below 1, or a scale outside (0, 1].

    Source: https://arxiv.org/abs/2111.09714

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
        super().__init__()
        if tau < 1 or block < 1:
            raise ValueError(f"YOSO's tau and block must be at least 1, got {tau} and {block}")
        if not 0 < scale <= 1:
            raise ValueError(f"YOSO's scale must be above 0 and at most 1, got {scale}")
        choose("YOSO's gradient", gradient, ("exact", "surrogate"))
        self.tau, self.scale, self.gradient, self.block = tau, scale, gradient, block

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Angular:
        """Generate the map of these tokens."""
        q, k = self.scale * F.normalize(wide(q), dim=-1), F.normalize(wide(k), dim=-1)
        return Angular(q, k, self.tau, key_mask(mask), self.gradient, self.block)

    def readout(self, z: Tensor) -> Tensor:
        """Rows of length 1, as published; a row of zeros stays zero."""
        return F.normalize(wide(z), dim=-1).to(z.dtype)
