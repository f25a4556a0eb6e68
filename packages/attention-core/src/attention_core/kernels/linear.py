"""Linear attention (Katharopoulos et al. 2020), https://arxiv.org/abs/2006.16236"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_nonnegative
from attention_core.kernels.common import Kernel, at_least_float32, key_mask, zero_padding
from attention_core.operators import LowRank


def normalize_feature_map(
    left: Tensor,
    right: Tensor,
    valid: Tensor | None,
    dtype: torch.dtype,
    eps: float = 0.0,
    floor: float = 0.0,
    total: Tensor | None = None,
) -> LowRank:
    r"""Build the map of two sets of nonnegative features, with rows divided by their sums.

    .. math::
        A_{ij} = \frac{l_i \cdot r_j}{\max(l_i \cdot \Sigma + \epsilon, \mathrm{floor})}, \quad
        \Sigma = \sum_j r_j

    The factors are l_i * Sigma over row sums (rows sum to 1) and r_j / Sigma (columns sum to 1),
    which half precision represents at any length. Rows and columns of padding are zero.

    Shapes: left, right (B, H, N, r), valid (B, 1, 1, N) boolean; `total` (B, H, 1, r) replaces
    Sigma where that is not the sum over the valid keys. Both factors are converted to `dtype`.

    Source: eq. 5 of https://arxiv.org/abs/2006.16236

    >>> left, right = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    >>> normalize_feature_map(left, right, None, torch.float32).dense()
    tensor([[0.2500, 0.7500],
            [0.2500, 0.7500]])
    """
    left, right = zero_padding(left, valid), zero_padding(right, valid)
    total = right.sum(-2, keepdim=True) if total is None else total
    left = left * total
    rows = (left.sum(-1, keepdim=True) + eps).clamp(min=floor)
    # sums of zero are replaced by 1: dividing by the tiniest number has an infinite gradient
    rows, columns = (t.masked_fill(t == 0, 1.0) for t in (rows, total))
    return LowRank((left / rows).to(dtype), (right / columns).to(dtype), valid)


class LinearAttention(Kernel):
    r"""Attention whose similarity is a product of features: linear in N.

    .. math::
        A_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)},
        \quad \phi = \mathrm{elu} + 1

    With `normalise` it is the Linear Transformer; without it, the map that the LRA code of
    Nystromformer calls linear, another operator of the same name:

    .. math:: A_{ij} = n^{-1/4} \phi(q_i) \cdot n^{-1/4} \phi(k_j)

    where n counts the padding, as published, so that the scale depends on the batch.

    Shapes: q, k (B, H, N, d), x (B, N, D) is unused, mask (B, N) or (B, 1, 1, N), True where a
    token is valid; rows and columns of padding are zero. Time O(N d D), memory O(N D); never
    causal.

    Source: eqs. 5 and 7 of https://arxiv.org/abs/2006.16236

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
            return normalize_feature_map(left, right, valid, q.dtype, self.eps)
        scale = k.shape[-2] ** -0.25
        left, right = scale * zero_padding(left, valid), scale * zero_padding(right, valid)
        return LowRank(left.to(q.dtype), right.to(q.dtype), valid)
