"""cosFormer (Qin et al. 2022), https://arxiv.org/abs/2202.08791"""

import math
from typing import Literal

import torch
from torch import Tensor

from attention_core.checks import check_choices, check_positive
from attention_core.kernels.common import Kernel, at_least_float32, key_mask
from attention_core.kernels.linear import FeatureMap

Horizon = Literal["real", "padded"]


class Cosformer(Kernel):
    r"""Linear attention of rectified queries and keys, which decays with their distance.

    .. math::
        A_{ij} = \frac{S_{ij}}{\max(\sum_l S_{il}, \epsilon)}, \quad
        S_{ij} = (q_i^+ \cdot k_j^+) \cos \frac{\pi (i - j)}{2 M}, \quad i = 1 .. N

    The cosine of a difference turns d features into 2d: q cos and q sin of the position's angle.
    The published code does not mask padding; here it is always masked. There is no 1/sqrt(d).

    Shapes: those of `Kernel`, x unused. Time O(N d D), memory O(N D).

    Source: section 3.2 of https://arxiv.org/abs/2202.08791

    Args:
        horizon: M is the position of a sample's last valid token (`real`), or the length of the
            batch (`padded`, as published), by which padding changes the map.
        eps: Lowest sum of a row.

    >>> q = k = torch.ones(1, 1, 2, 4)  # cos 0 = 1 and cos(pi/4) = .7071, over their sum
    >>> Cosformer(4, 1)(q, k, torch.zeros(1, 2, 4)).dense()
    tensor([[[[0.5858, 0.4142],
              [0.4142, 0.5858]]]])
    """

    def __init__(
        self, dim: int, num_heads: int, horizon: Horizon = "real", eps: float = 1e-6
    ) -> None:
        super().__init__(dim, num_heads)
        check_choices("Cosformer", horizon=(horizon, Horizon))
        check_positive("Cosformer", eps=eps)
        self.horizon, self.eps = horizon, eps

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> FeatureMap:
        """Compute the map of these tokens."""
        valid = key_mask(mask, q, k)
        q, k, n = at_least_float32(q), at_least_float32(k), q.shape[-2]
        i = torch.arange(1, n + 1, dtype=q.dtype, device=q.device).unsqueeze(-1)
        M: Tensor | int = n
        if valid is not None and self.horizon == "real":
            M = (i * valid.mT).amax(-2, keepdim=True).clamp(min=1)
        angle = math.pi / 2 * i / M  # (N, 1), or (B, 1, N, 1) where samples differ in M
        cos, sin = angle.cos(), angle.sin()
        left, right = (torch.cat([t * cos, t * sin], -1) for t in (q.relu(), k.relu()))
        return FeatureMap(left, right, valid, floor=self.eps)
