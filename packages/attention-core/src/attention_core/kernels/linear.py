"""Linear attention (Katharopoulos et al. 2020), https://arxiv.org/abs/2006.16236"""

import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_nonnegative
from attention_core.kernels.common import (
    Kernel,
    at_least_float32,
    autocast_disabled,
    key_mask,
    zero_padding,
)
from attention_core.operators import LowRank
from attention_core.operators.base import check_values


class FeatureMap(LowRank):
    r"""The map of two sets of nonnegative features, with rows divided by their sums.

    .. math::
        A_{ij} = \frac{l_i \cdot r_j}{\max(l_i \cdot \Sigma + \epsilon, \mathrm{floor})}, \quad
        \Sigma = \sum_j r_j

    The sums are taken with the values, as one more column, so that no factor is written again;
    half precision could not hold them, so they are in single.

    Shapes: left, right (B, H, N, r), valid (B, 1, 1, N) boolean. Rows and columns of padding are
    zero; with `counts_padding` their features are in Sigma.

    Source: eq. 5 of https://arxiv.org/abs/2006.16236
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        valid: Tensor | None,
        eps: float = 0.0,
        floor: float = 0.0,
        counts_padding: bool = False,
    ) -> None:
        right = right if counts_padding else zero_padding(right, valid)
        super().__init__(zero_padding(left, valid), right, valid)
        self.eps, self.floor, self.counts_padding = eps, floor, counts_padding

    def __matmul__(self, v: Tensor) -> Tensor:
        """Contract the tokens first, beside their number."""
        check_values(v, self.right.shape[-2])
        values = zero_padding(v, self.mask) if self.counts_padding else v
        with autocast_disabled(v):
            values = F.pad(values.to(self.left.dtype), (0, 1), value=1.0)
            y = self.left @ (self.right.mT @ values)
            rows = (y[..., -1:] + self.eps).clamp(min=self.floor)
            # sums of zero become 1: dividing by the tiniest number has an infinite gradient
            return (y[..., :-1] / rows.masked_fill(rows == 0, 1.0)).to(v.dtype)


class LinearAttention(Kernel):
    r"""Attention whose similarity is a product of features: linear in N.

    .. math::
        A_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)},
        \quad \phi = \mathrm{elu} + 1

    is the Linear Transformer. The LRA code of Nystromformer calls another map linear:

    .. math:: A_{ij} = n^{-1/4} \phi(q_i) \cdot n^{-1/4} \phi(k_j)

    where n counts the padding, as published, so that the scale depends on the batch.

    Shapes: those of `Kernel`, x unused. Time O(N d D), memory O(N D).

    Source: eqs. 5 and 7 of https://arxiv.org/abs/2006.16236

    Args:
        normalise: Take the first map; else the second.
        eps: Added to the sum of a row.

    >>> import torch
    >>> q = k = torch.zeros(1, 1, 2, 4)  # all alike: every token takes the mean
    >>> LinearAttention(4, 1)(q, k, torch.zeros(1, 2, 4)).dense()
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """

    def __init__(self, dim: int, num_heads: int, normalise: bool = True, eps: float = 1e-6) -> None:
        super().__init__(dim, num_heads)
        check_nonnegative("LinearAttention", eps=eps)
        self.normalise, self.eps = normalise, eps

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LowRank:
        """Compute the map of these tokens."""
        valid = key_mask(mask, q, k)
        left, right = F.elu(at_least_float32(q)) + 1, F.elu(at_least_float32(k)) + 1
        if self.normalise:
            return FeatureMap(left, right, valid, self.eps)
        scale = k.shape[-2] ** -0.25
        left, right = scale * zero_padding(left, valid), scale * zero_padding(right, valid)
        return LowRank(left.to(q.dtype), right.to(q.dtype), valid)
