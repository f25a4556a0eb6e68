"""cosFormer (Qin et al. 2022), https://arxiv.org/abs/2202.08791"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.kernels.linear import normalised
from attention_core.kernels.parts import choose, key_mask, wide
from attention_core.operators import LowRank

Horizon = Literal["real", "padded"]


class Cosformer(nn.Module):
    r"""Linear attention of rectified queries and keys that fades with their distance.

    .. math::
        A_{ij} = \frac{S_{ij}}{\max(\sum_l S_{il}, \epsilon)}, \quad
        S_{ij} = (q_i^+ \cdot k_j^+) \cos \frac{\pi (i - j)}{2 M}, \quad i = 1 .. N

    The cosine of a difference makes 2d features of d: q cos and q sin of the position's angle.
    `horizon` says what M is: the position of a sample's last real token (`real`), or the
    length of the batch (`padded`), which is published and lets padding change the map. The
    published code masks no padding; here it is always masked. There is no 1/sqrt(d).

    Shapes: q, k (B, H, N, d), x (B, N, D) is unused, mask (B, N) or (B, 1, 1, N), True where a
    token is real; rows and columns of padding are zero. Time O(N d D), memory O(N D); never
    causal.

    Raises ValueError for another horizon, an eps that is not positive, and a mask that depends on
    the query.

    Source: section 3.2 of https://arxiv.org/abs/2202.08791

    >>> q = k = torch.ones(1, 1, 2, 4)  # cos 0 = 1 and cos(pi/4) = .7071, over their sum
    >>> Cosformer(4, 1)(q, k, torch.zeros(1, 2, 4)).dense()
    tensor([[[[0.5858, 0.4142],
              [0.4142, 0.5858]]]])
    """

    def __init__(
        self, dim: int, num_heads: int, horizon: Horizon = "real", eps: float = 1e-6
    ) -> None:
        super().__init__()
        choose("Cosformer's horizon", horizon, ("real", "padded"))
        if eps <= 0:
            raise ValueError(f"Cosformer's eps must be positive, got {eps}")
        self.horizon, self.eps = horizon, eps

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LowRank:
        """Make the map of these tokens."""
        keep = key_mask(mask)
        angle = self.angles(wide(q), keep)
        cos, sin = angle.cos(), angle.sin()
        left, right = (torch.cat([t * cos, t * sin], -1) for t in (wide(q).relu(), wide(k).relu()))
        return normalised(left, right, keep, q.dtype, floor=self.eps)

    def angles(self, like: Tensor, keep: Tensor | None) -> Tensor:
        """pi i / 2M of each position, (N, 1), or (B, 1, N, 1) where samples differ in M."""
        n = like.shape[-2]
        i = torch.arange(1, n + 1, dtype=like.dtype, device=like.device).unsqueeze(-1)
        if keep is None or self.horizon == "padded":
            return math.pi / 2 * i / n
        M = (i * keep.mT).amax(-2, keepdim=True).clamp(min=1)
        return math.pi / 2 * i / M
