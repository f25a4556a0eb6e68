"""The softmax map, fused; shapes as in `protocol`."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.operators.base import allowed_pairs, apply_operator, identity_like, masked_mean
from attention_core.operators.dropped import LANES, Dropout, attend, is_blockwise
from attention_core.operators.formed import biased, drop, is_learned, is_traced


class Softmax:
    r"""The attention map of queries and keys, applied by one fused kernel.

    .. math:: A = \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + \mathrm{mask})

    Shapes: q (B, H, N, D), k (B, H, M, D); mask broadcasts to (B, H, N, M): boolean (True may
    attend) or added to the logits (it may be learned). `scale` is 1/sqrt(D) where None. A row
    that may attend to nothing is zero. Memory is O(N + M); a learned bias is itself N M, and so
    is a causal map with a mask besides. Each `@` draws a dropout mask of its own; `polynomial`
    draws a single one on a CPU. There, where fused kernels would form the map to drop its
    entries, a long one is dropped by blocks; a short one, one under autocast and that of a learned
    bias are formed, from logits of single precision or more. A p below 2^-17 is the fused call's.

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
        self.is_learned = not is_causal and is_learned(q, k, mask)
        if mask is not None and mask.dtype != torch.bool and not self.is_learned:
            # -inf, as finfo.min depends on the dtype and leaves a fully masked row uniform
            mask = mask.masked_fill(~allowed_pairs(mask), -torch.inf).to(q.dtype)
        if mask is not None and is_causal:
            # one mask, since fused kernels take either a mask or the causal flag
            past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            mask = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)
            is_causal = False
        self.q, self.k, self.mask, self.is_causal = q, k, mask, is_causal
        self.dropout, self.scale = dropout, scale
        self.seed: int | None = None

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attend: one scaled_dot_product_attention, but on a CPU where that forms the map."""
        if self.is_learned:
            return self.formed() @ v
        if self.is_dropped:
            if not self.is_blockwise(v):
                return self.formed() @ v
            dropout = Dropout(self.is_causal, self.scale, self.dropout, self._chosen())
            return attend(self.q, self.k, v, self.mask, dropout)
        return F.scaled_dot_product_attention(
            self.q, self.k, v, self.mask, self.dropout, self.is_causal, scale=self.scale
        )

    @property
    def is_dropped(self) -> bool:
        """Whether entries are dropped here, on a CPU, and not by a fused kernel."""
        lanes = round(self.dropout * LANES)
        return lanes > 0 and self.q.device.type == "cpu" and not is_traced()

    def is_blockwise(self, v: Tensor) -> bool:
        """Whether `@` drops entries by blocks: on a CPU, where maps are long and masks fixed."""
        return is_blockwise(self.q, self.k, v, self.mask, self.dropout)

    def seeded(self) -> "Softmax":
        """The same map, whose applications on a CPU all drop the same entries."""
        fixed = copy.copy(self)
        fixed.seed = _seed()
        return fixed

    def formed(self) -> Tensor:
        """The map on a CPU, (B, H, N, M), less the entries that dropout takes, to be applied."""
        if self.is_learned and self.mask is not None:
            A = biased((self.q * self._scale()) @ self.k.mT, self.mask)
        else:
            with torch.autocast("cpu", enabled=False):
                A = self._wide().dense().to(self.q.dtype)
        return drop(A, self.dropout, self._chosen()) if self.dropout > 0 else A

    def _wide(self) -> "Softmax":
        """The same map in single precision or more, as fused kernels have their logits."""
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        q, k = self.q.to(dtype), self.k.to(dtype)
        return Softmax(q, k, self.mask, self.is_causal, scale=self.scale)

    def _scale(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def _chosen(self) -> int:
        return _seed() if self.seed is None else self.seed

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the keys that each query may attend to; dropout never applies."""
        allowed = None if self.mask is None else allowed_pairs(self.mask)
        if self.is_causal or (allowed is not None and allowed.shape[-2] > 1):
            return apply_operator(
                Softmax(torch.zeros_like(self.q), self.k, allowed, self.is_causal), v
            )
        return masked_mean(v, allowed)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, M), without dropout: O(N M) memory, for looking at it."""
        scale = self._scale()
        q = self.q if scale == 1 else self.q * scale  # before the product: less to scale
        logits = q @ self.k.mT
        mask, lowest = self.mask, torch.finfo(logits.dtype).min
        if self.is_causal:  # with no mask besides; every query sees the first key
            past = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
            return logits.masked_fill(~past, lowest).softmax(-1)
        if mask is None:
            return logits.softmax(-1)
        allowed = allowed_pairs(mask)
        if mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(~allowed, 0.0)
        # the lowest finite number, not -inf: a fully masked row stays finite, and is then zeroed
        return logits.masked_fill(~allowed, lowest).softmax(-1) * allowed.any(-1, keepdim=True)

    def eye(self) -> Tensor:
        """The identity as values, (B, H, M, M): `A @ A.eye()` is the map."""
        return identity_like(self.q, self.k.shape[-2])


def _seed() -> int:
    """A number of torch's own generator, so that `torch.manual_seed` decides what is dropped."""
    return int(torch.randint(2**63 - 1, (), device="cpu"))
