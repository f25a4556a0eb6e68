"""The softmax map, applied by fused attention."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_finite, check_numbers, check_tensors
from attention_core.operators.base import (
    LinearMap,
    allowed_pairs,
    apply_operator,
    can_recompute,
    check_values,
    masked_mean,
    read_mask,
)
from attention_core.operators.polynomial import Step
from attention_core.operators.recomputed import apply_recomputed


class Softmax(LinearMap):
    r"""The attention map of queries and keys, applied by one fused kernel.

    .. math:: A = \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})

    Shapes: q (B, H, N, D), k (B, H, M, D). A row that may attend to nothing is zero.

    Fused attention needs O(N + M) memory, or O(N M) with a learned bias or with both a mask and
    causality; each `@` draws its own dropout mask, but on a CPU a polynomial of A draws one. With
    `shares_dropout` all `@` use one mask on every device: the map is formed once, in O(N M) memory.

    Args:
        mask: Boolean (True may attend), or added to the logits (a bias, which may be learned);
            broadcasts to (B, H, N, M).
        is_causal: If true, a query attends to no later key.
        dropout: The probability with which an entry is dropped.
        scale: The factor of the logits, 1/sqrt(D) by default.
        allowed: Pairs that `average` counts, if they are fewer than those that the mask allows.

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
        allowed: Tensor | None = None,
    ) -> None:
        mask = read_mask(mask, q.device)
        _check_operands(q, k, mask)
        if dropout != 0:
            check_numbers("Softmax", 0, 1, dropout=dropout)
        if scale is not None and not torch.compiler.is_compiling():  # a number may be symbolic
            check_finite("Softmax", scale=scale)
        mask = None if mask is None else mask[(None,) * (2 - mask.ndim)]  # keys alone
        if mask is not None and mask.dtype != torch.bool:
            # -inf, since finfo.min leaves a fully masked row uniform, not zero
            mask = mask.masked_fill(~allowed_pairs(mask), -torch.inf).to(q.dtype)
        if mask is not None and is_causal:
            # one mask, since fused kernels take either a mask or the causal flag
            past = _build_causal_mask(q, k)
            mask = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)
            is_causal = False
        self.q, self.k, self.like, self.mask, self.is_causal = q, k, k, mask, is_causal
        self.dropout, self.scale, self.allowed = dropout, scale, allowed
        self.shares_dropout = False
        self._dropped: Tensor | None = None  # the map that all applications share
        self._has_grad = False  # whether it was formed where gradients are enabled

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the map by one fused call; a CPU forms it for dropout and learned biases."""
        check_values(v, self.k.shape[-2])
        if self.shares_dropout and self.dropout > 0:
            if self._dropped is None or torch.is_grad_enabled() > self._has_grad:
                self._dropped = F.dropout(self.dense(), self.dropout)
                self._has_grad = torch.is_grad_enabled()
            return self._dropped.to(v.dtype) @ v
        is_learned = self.mask is not None and self.mask.requires_grad
        if (self.dropout > 0 or is_learned) and can_recompute(self.q, self.k, v):
            return self._recompute(v, [], [(1.0, 0.0, 0.0)])
        return F.scaled_dot_product_attention(
            self.q, self.k, v, self.mask, self.dropout, self.is_causal, scale=self.scale
        )

    def polynomial(
        self, v: Tensor, coefficients: Sequence[Tensor], steps: Sequence[Step]
    ) -> Tensor | None:
        """Apply a polynomial of the map on a CPU; return None where fused calls are right."""
        skips_future = self.is_causal and self.dropout == 0  # which halves the time of fused calls
        is_scalar = all(c.ndim < 4 and c.shape[-2:].numel() == 1 for c in coefficients)
        if len(steps) < 2 or skips_future or not is_scalar:
            return None
        if not can_recompute(self.q, self.k, v):
            return None
        return self._recompute(v, coefficients, steps)

    def _recompute(self, v: Tensor, theta: Sequence[Tensor], steps: Sequence[Step]) -> Tensor:
        mask = _build_causal_mask(self.q, self.k) if self.is_causal else self.mask
        operands = (self.q, self.k, v, mask)
        return apply_recomputed(operands, self._scale(), self.dropout, theta, steps)

    def average(self, v: Tensor) -> Tensor:
        """Average v over the keys that each query may attend to; dropout never applies."""
        allowed = self.allowed
        if allowed is None and self.mask is not None:
            allowed = allowed_pairs(self.mask).expand(*self.mask.shape[:-1], self.k.shape[-2])
        has_rows = allowed is not None and allowed.shape[-2] > 1
        raises = v.is_cuda and torch.are_deterministic_algorithms_enabled()  # a cumsum on a GPU
        if self.is_causal and not (has_rows or raises) and self.q.shape[-2] == v.shape[-2]:
            valid = torch.ones_like(v[..., :1]) if allowed is None else allowed.mT
            valid = valid.to(torch.promote_types(v.dtype, torch.float32))
            return ((v * valid).cumsum(-2) / valid.cumsum(-2).clamp(min=1)).to(v.dtype)
        if self.is_causal or has_rows:
            uniform = Softmax(torch.zeros_like(self.q), self.k, allowed, self.is_causal)
            return apply_operator(uniform, v)
        return masked_mean(v, allowed)

    def dense(self) -> Tensor:
        """Return the map itself, (B, H, N, M), without dropout, in O(N M) memory."""
        scale = self._scale()
        q = self.q if scale == 1 else self.q * scale  # q has fewer entries than the logits
        return self._normalize(q @ self.k.mT)

    def _normalize(self, logits: Tensor) -> Tensor:
        """Return the softmax of the masked logits, zero in rows without an allowed key."""
        mask, lowest = self.mask, torch.finfo(logits.dtype).min
        if self.is_causal:  # without a mask; every query sees the first key
            return self._softmax(logits.masked_fill(~_build_causal_mask(self.q, self.k), lowest))
        if mask is None:
            return self._softmax(logits)
        allowed = allowed_pairs(mask)
        if mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(~allowed, 0.0)
        # the lowest finite number, not -inf: a fully masked row stays finite, and is then zeroed
        logits = logits.masked_fill(~allowed, lowest)
        return self._softmax(logits) * allowed.any(-1, keepdim=True)

    def _softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def _scale(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale


def _check_operands(q: Tensor, k: Tensor, mask: Tensor | None) -> None:
    check_tensors("Softmax", 2, q=q, k=k)
    if q.ndim != k.ndim or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "queries and keys must have as many axes and channels, got the shapes "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if mask is None:
        return
    check_tensors("Softmax", 0, mask=mask)
    shape = (*q.shape[:-1], k.shape[-2])
    sizes = zip(mask.shape[::-1], shape[::-1], strict=False)
    if mask.ndim > q.ndim or any(size not in (1, own) for size, own in sizes):
        raise ValueError(f"a map of shape {shape} got a mask of shape {tuple(mask.shape)}")


def _build_causal_mask(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
