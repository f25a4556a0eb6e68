"""Flowformer (Wu et al. 2022), https://arxiv.org/abs/2202.06258"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from attention_core.checks import check_choices, check_positive
from attention_core.kernels.common import Kernel, at_least_float32, key_mask, zero_padding
from attention_core.operators import LowRank

Features = Literal["sigmoid", "relu"]

_FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": lambda t: t.relu() + 1e-6,
}


class Flowformer(Kernel):
    r"""Linear attention as a conserved flow from keys (sources) to queries (sinks).

    .. math::
        A_{ij} = \sigma(\hat I_i \tfrac{n}{m}) \, I_i \, (q_i \cdot k_j) \, m \,
            \mathrm{softmax}_j(\hat O_j)

        I_i^{-1} = q_i \cdot \Sigma_j k_j, \quad O_j^{-1} = k_j \cdot \Sigma_i q_i, \quad
        \hat I_i = q_i \cdot \Sigma_j O_j k_j, \quad \hat O_j = k_j \cdot \Sigma_i I_i q_i

    for positive features q and k. The published code does not mask padding; here n = m counts the
    valid tokens of each sample, and all sums are over valid tokens.

    Shapes: those of `Kernel`, x unused. Time O(N d D), memory O(N D).

    Source: section 3.2 of https://arxiv.org/abs/2202.06258

    Args:
        features: sigmoid (UEA code) or relu + 1e-6 (LRA code, but without its softmax over heads).
        clamp: Limit O to [-1, 1], as the stand-alone module does and the UEA code does not.
        eps: Added to each factor of the four products.

    >>> q = k = torch.zeros(1, 1, 2, 4)  # two alike: each sends half of sigmoid(1) = .7311
    >>> Flowformer(4, 1)(q, k, torch.zeros(1, 2, 4)).dense()
    tensor([[[[0.3655, 0.3655],
              [0.3655, 0.3655]]]])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        features: Features = "sigmoid",
        clamp: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, num_heads)
        check_choices("Flowformer", features=(features, Features))
        check_positive("Flowformer", eps=eps)
        self.features, self.clamp, self.eps = features, clamp, eps

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LowRank:
        """Compute the map of these tokens."""
        valid, dtype = key_mask(mask, q, k), q.dtype
        q, k = (zero_padding(_FEATURES[self.features](at_least_float32(t)), valid) for t in (q, k))
        incoming, outgoing = 1 / self._exchange_flow(q, k), 1 / self._exchange_flow(k, q)
        allocation = self._exchange_flow(q, k * outgoing).sigmoid()  # n / m = 1 in self-attention
        conserved = self._exchange_flow(k, q * incoming)
        if self.clamp:
            conserved = conserved.clamp(-1, 1)
        if valid is not None:
            conserved = conserved.masked_fill(~valid.mT, torch.finfo(conserved.dtype).min)
        tokens = q.shape[-2] if valid is None else valid.mT.sum(-2, keepdim=True)
        # m multiplies the small I, not the softmax: both factors then fit into half precision
        left, right = q * (allocation * incoming * tokens), k * conserved.softmax(-2)
        return LowRank(left.to(dtype), right.to(dtype), valid)

    def _exchange_flow(self, to: Tensor, of: Tensor) -> Tensor:
        """Sum the flow between each token of one side and all of the other, (B, H, N, 1)."""
        return ((to + self.eps) * (of.sum(-2, keepdim=True) + self.eps)).sum(-1, keepdim=True)
