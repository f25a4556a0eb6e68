"""What `A @ v` means for each way of holding an attention map A.

Shapes throughout: B batch, H heads, N queries, M keys, D head width, r rank. Values v are
(B, H, M, D). A map is square (N = M) in self-attention, which is all that a filter of A can use.
A plain tensor (B, H, N, M) is an operator as it stands; its keys are all taken as attended to.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

FORBIDDEN = -9e3  # an additive mask at or below this forbids


@runtime_checkable
class Operator(Protocol):
    """Anything that maps values to values linearly, `A @ v`.

    Source: Shuman et al., https://arxiv.org/abs/1211.0053 (attention as a graph shift operator).

    >>> isinstance(torch.eye(3), Operator)
    True
    """

    def __matmul__(self, v: Tensor, /) -> Tensor:
        """Apply the map to values (B, H, M, D), giving (B, H, N, D)."""


def apply(A: Operator, v: Tensor) -> Tensor:
    """`A @ v`, spelled so that torch.compile traces it: of our classes it knows methods alone.

    Source: torch/_dynamo/variables/builtin.py of torch 2.11, where matmul is no binary operator

    >>> apply(torch.eye(2), torch.ones(2, 1)).flatten()
    tensor([1., 1.])
    """
    return A.__matmul__(v)


def average(A: Operator, v: Tensor) -> Tensor:
    r"""Mean of the values over the keys that each query may attend to: the low-pass part of A.

    .. math:: J v, \quad J_{ij} = [j \text{ allowed for } i] / |\text{allowed for } i|

    Shapes: v (B, H, M, D) -> (B, H, 1, D) where all queries share their keys, else (B, H, N, D).
    A plain tensor carries no mask: all of its keys count.

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962

    >>> average(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    if isinstance(A, Tensor):
        return v.mean(-2, keepdim=True)
    return A.average(v)  # type: ignore[attr-defined]


def propagate(A: Operator, v: Tensor) -> Tensor:
    """Apply a square A, the only kind whose powers exist.

    Raises ValueError with the two lengths where A is not square.

    Source: Choi et al. 2024, eq. 7, https://arxiv.org/abs/2312.04234

    >>> propagate(torch.full((2, 2), 0.5), torch.tensor([[1.0], [3.0]])).flatten()
    tensor([2., 2.])
    """
    Av = apply(A, v)
    if Av.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"a filter of A needs self-attention: got {Av.shape[-2]} queries and {v.shape[-2]} "
            "keys; use Plain for cross-attention and class attention"
        )
    return Av


def support(mask: Tensor) -> Tensor:
    """Which pairs a mask allows: a boolean mask says so, a float mask forbids by a huge negative.

    Libraries forbid by -inf, finfo.min (transformers), -1e9 (LRA) or -1e4 (BERT), whatever dtype
    the mask is then cast to; a bias (relative positions, Swin's soft -100) allows what it lowers.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

    >>> support(torch.tensor([0.0, -3.0, float("-inf"), torch.finfo(torch.float32).min]))
    tensor([ True,  True, False, False])
    """
    return mask if mask.dtype == torch.bool else mask > FORBIDDEN


def masked_mean(v: Tensor, keep: Tensor | None) -> Tensor:
    """Mean over the tokens that `keep` names: all where it is None, zero where it names none.

    Shapes: v (..., M, D), keep (..., 1, M) boolean -> (..., 1, D).

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962

    >>> masked_mean(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    if keep is None:
        return v.mean(-2, keepdim=True)
    ones = keep.to(torch.promote_types(v.dtype, torch.float32))
    return (ones / ones.sum(-1, keepdim=True).clamp(min=1)).to(v.dtype) @ v


def _identity(like: Tensor, size: int) -> Tensor:
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape[:-2], size, size)


class Softmax:
    r"""The attention map of queries and keys, applied by one fused kernel and never formed.

    .. math:: A = \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})

    Shapes: q (B, H, N, D), k (B, H, M, D); mask broadcasts to (B, H, N, M): boolean (True may
    attend) or added to the logits (it may be learned). `scale` is 1/sqrt(D) where None. A row
    that may attend to nothing is zero. Memory is O(N + M); a learned bias is itself N M, and so
    is a causal map with a mask besides. Each `@` draws a dropout mask of its own.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    >>> A = Softmax(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    >>> A @ torch.tensor([[[[1.0], [3.0]]]])
    tensor([[[[2.],
              [2.]]]])
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        if mask is not None and mask.dtype != torch.bool:
            # -inf, as finfo.min depends on the dtype and leaves a fully masked row uniform
            mask = mask.masked_fill(~support(mask), -torch.inf).to(q.dtype)
        if mask is not None and is_causal:
            # one mask, since fused kernels take either a mask or the causal flag
            past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            mask = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)
            is_causal = False
        self.q, self.k, self.mask, self.is_causal = q, k, mask, is_causal
        self.dropout, self.scale = dropout, scale

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attend: one scaled_dot_product_attention."""
        return F.scaled_dot_product_attention(
            self.q, self.k, v, self.mask, self.dropout, self.is_causal, scale=self.scale
        )

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the keys that each query may attend to; dropout never applies."""
        allowed = None if self.mask is None else support(self.mask)
        if self.is_causal or (allowed is not None and allowed.shape[-2] > 1):
            return apply(Softmax(torch.zeros_like(self.q), self.k, allowed, self.is_causal), v)
        return masked_mean(v, allowed)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, M), without dropout: O(N M) memory, for looking at it."""
        scale = self.q.shape[-1] ** -0.5 if self.scale is None else self.scale
        logits = self.q @ self.k.mT * scale
        mask = self.mask
        if self.is_causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if mask is None:
            return logits.softmax(-1)
        allowed = support(mask)
        if mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(~allowed, 0.0)
        # the lowest finite number, not -inf: a fully masked row stays finite, and is then zeroed
        logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
        return logits.softmax(-1) * allowed.any(-1, keepdim=True)

    def eye(self) -> Tensor:
        """The identity as values, (B, H, M, M): `A @ A.eye()` is the map."""
        return _identity(self.q, self.k.shape[-2])


class LowRank:
    r"""A map of rank r held by its two factors: linear attention.

    .. math:: A = L R^\top, \qquad A v = L (R^\top v)

    Shapes: left (B, H, N, r), right (B, H, M, r); mask (B, 1, 1, M) boolean says which keys are
    real (the factors are expected to be zero elsewhere; it defines the average). O(N r D) time.

    Source: Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236

    >>> LowRank(torch.ones(2, 1), torch.full((2, 1), 0.5)) @ torch.tensor([[1.0], [3.0]])
    tensor([[2.],
            [2.]])
    """

    def __init__(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> None:
        self.left, self.right, self.mask = left, right, mask

    def __matmul__(self, v: Tensor) -> Tensor:
        """Contract the tokens first: (r, D), then (N, D)."""
        return self.left @ (self.right.mT @ v)

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, M)."""
        return self.left @ self.right.mT

    def eye(self) -> Tensor:
        """The identity as values, (B, H, M, M)."""
        return _identity(self.right, self.right.shape[-2])


class Diagonal:
    r"""A map in its own eigenbasis: `filter(Diagonal(lam), ones)` is the filter's response.

    .. math:: A = \mathrm{diag}(\lambda)

    Shapes: values (..., N). `dc` is the index of the constant eigenvector, the component that an
    average keeps; None where the constant signal is not among them.

    Source: Shuman et al., eq. 14, https://arxiv.org/abs/1211.0053

    >>> Diagonal(torch.tensor([1.0, 0.5])) @ torch.ones(2, 1)
    tensor([[1.0000],
            [0.5000]])
    """

    def __init__(self, values: Tensor, dc: int | None = None) -> None:
        self.values, self.dc = values, dc

    def __matmul__(self, v: Tensor) -> Tensor:
        """Scale each component by its eigenvalue."""
        return self.values.unsqueeze(-1) * v

    def average(self, v: Tensor) -> Tensor:
        """Keep the constant component alone."""
        kept = torch.zeros_like(v)
        if self.dc is not None:
            kept[..., self.dc, :] = v[..., self.dc, :]
        return kept

    def dense(self) -> Tensor:
        """The map itself, (..., N, N)."""
        return torch.diag_embed(self.values)

    def eye(self) -> Tensor:
        """The identity as values, (..., N, N)."""
        return _identity(self.values.unsqueeze(-1), self.values.shape[-1])


class Host:
    """A map that another library applies: its own attention function, closed over q, k and masks.

    Shapes: `apply` maps values (B, H, M, D) to (B, H, N, D) linearly; `like` is a value tensor
    that gives batch, heads, tokens, dtype and device. `average` defaults to the mean over all
    keys: pass the host's own masked mean where there is a mask.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> A = Host(lambda v: 0.5 * v, like=torch.ones(1, 1, 2, 1))
    >>> A.dense()
    tensor([[[[0.5000, 0.0000],
              [0.0000, 0.5000]]]])
    """

    def __init__(
        self,
        apply: Callable[[Tensor], Tensor],
        like: Tensor,
        average: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.apply, self.like, self._average = apply, like, average

    def __matmul__(self, v: Tensor) -> Tensor:
        """Let the host attend."""
        return self.apply(v)

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the allowed keys, as the host defines it."""
        return v.mean(-2, keepdim=True) if self._average is None else self._average(v)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, M), one column of the identity at a time."""
        return self @ self.eye()

    def eye(self) -> Tensor:
        """The identity as values, (B, H, M, M)."""
        return _identity(self.like, self.like.shape[-2])
