"""Linear attention (Katharopoulos et al. 2020), https://arxiv.org/abs/2006.16236"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.kernels.parts import key_mask, real, wide
from attention_core.operators import LowRank


def normalised(
    left: Tensor,
    right: Tensor,
    keep: Tensor | None,
    dtype: torch.dtype,
    eps: float = 0.0,
    floor: float = 0.0,
    total: Tensor | None = None,
) -> LowRank:
    r"""The map of two sets of features that are not negative, its rows divided by their sums.

    .. math::
        A_{ij} = \frac{l_i \cdot r_j}{\max(l_i \cdot \Sigma + \epsilon, \mathrm{floor})}, \quad
        \Sigma = \sum_j r_j

    It is held as l_i * Sigma over row sums (rows sum to 1) and r_j / Sigma (columns sum to 1),
    numbers that half precision holds at any length. Padding is zero in rows and in columns.

    Shapes: left, right (B, H, N, r), keep (B, 1, 1, N) boolean; `total` (B, H, 1, r) is Sigma
    where it is not the sum over the real keys. Both factors are put out as `dtype`.

    Source: eq. 5 of https://arxiv.org/abs/2006.16236

    >>> left, right = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    >>> normalised(left, right, None, torch.float32).dense()
    tensor([[0.2500, 0.7500],
            [0.2500, 0.7500]])
    """
    left, right = real(left, keep), real(right, keep)
    total = right.sum(-2, keepdim=True) if total is None else total
    left = left * total
    rows = (left.sum(-1, keepdim=True) + eps).clamp(min=floor)
    # what has no weight stays zero: by 1, as a gradient over the tiniest number is infinite
    rows, columns = (t.masked_fill(t == 0, 1.0) for t in (rows, total))
    return LowRank((left / rows).to(dtype), (right / columns).to(dtype), keep)


class LinearAttention(nn.Module):
    r"""Attention whose similarity is a product of features: linear in N.

    .. math::
        A_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)},
        \quad \phi = \mathrm{elu} + 1

    `normalise` is the Linear Transformer; without it the map is the one that the LRA code of
    Nystromformer calls linear, another operator under the same name:

    .. math:: A_{ij} = n^{-1/4} \phi(q_i) \cdot n^{-1/4} \phi(k_j)

    where n counts the padding, as published, so that its scale depends on the batch.

    Shapes: q, k (B, H, N, d), x (B, N, D) is unused, mask (B, N) or (B, 1, 1, N), True where a
    token is real; rows and columns of padding are zero. Time O(N d D), memory O(N D); never
    causal.

    Raises ValueError for a negative eps, and for a mask that depends on the query.

    Source: eqs. 5 and 7 of https://arxiv.org/abs/2006.16236

    >>> q = k = torch.zeros(1, 1, 2, 4)  # all alike: every token takes the mean
    >>> LinearAttention(4, 1)(q, k, torch.zeros(1, 2, 4)).dense()
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """

    def __init__(self, dim: int, num_heads: int, normalise: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        if eps < 0:
            raise ValueError(f"LinearAttention's eps must not be negative, got {eps}")
        self.normalise, self.eps = normalise, eps

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LowRank:
        """Make the map of these tokens."""
        keep = key_mask(mask)
        left, right = F.elu(wide(q)) + 1, F.elu(wide(k)) + 1
        if self.normalise:
            return normalised(left, right, keep, q.dtype, self.eps)
        scale = k.shape[-2] ** -0.25
        left, right = scale * real(left, keep), scale * real(right, keep)
        return LowRank(left.to(q.dtype), right.to(q.dtype), keep)
