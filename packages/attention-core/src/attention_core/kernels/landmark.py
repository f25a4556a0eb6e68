"""Operators of the landmark kernels: a map of three factors, and a convolution added to a map."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.checks import check_ints
from attention_core.kernels.common import autocast_disabled, zero_padding
from attention_core.operators import LinearMap, LowRank, Softmax, apply_operator


class LandmarkOperator(LowRank):
    r"""A map of rank m as a product of three factors, applied in their precision.

    .. math:: A = L C R^\top, \qquad A v = L (C (R^\top v))

    Shapes: left (B, H, N, m), core (B, H, m, m), right (B, H, N, m), mask (B, 1, 1, N).
    O(N m D + m^2 D) time: the core is never multiplied into a factor of N rows.

    Source: https://arxiv.org/abs/2102.03902
    """

    def __init__(
        self, left: Tensor, core: Tensor, right: Tensor, mask: Tensor | None = None
    ) -> None:
        super().__init__(left, right, mask)
        self.core = core

    def __matmul__(self, v: Tensor) -> Tensor:
        """Contract the tokens, mix the landmarks, expand."""
        # the inverse of a nearly singular core amplifies the rounding errors of half precision
        with autocast_disabled(v):
            z = self.left @ (self.core @ (self.right.mT @ v.to(self.right.dtype)))
        return z.to(v.dtype)


class PlusConvolution(LinearMap):
    r"""A map plus a convolution over the tokens, with one filter a head.

    .. math:: A v = B v + m \odot (w * (m \odot v))

    Shapes: weight (H, 1, odd, 1), mask m (B, 1, 1, N) boolean or None, v (B, H, N, D). The
    sequence is padded with zeros, as are the tokens whose mask is False.

    Source: https://arxiv.org/abs/2102.03902
    """

    def __init__(self, base: LowRank | Softmax, weight: Tensor, mask: Tensor | None = None) -> None:
        self.base, self.weight, self.mask, self.like = base, weight, mask, base.like

    def __matmul__(self, v: Tensor) -> Tensor:
        """Add the map of the values and their convolution."""
        Bv, weight = apply_operator(self.base, v), self.weight.to(v.dtype)
        pad = (weight.shape[-2] // 2, 0)
        z = F.conv2d(zero_padding(v, self.mask), weight, padding=pad, groups=len(weight))
        return Bv + zero_padding(z, self.mask).to(v.dtype)


def make_depthwise_weight(owner: str, num_heads: int, kernel_size: int) -> nn.Parameter | None:
    """Create the filters (H, 1, kernel_size, 1) of `PlusConvolution`; None where the size is 0."""
    check_ints(owner, 0, kernel_size=kernel_size)
    if kernel_size == 0:
        return None
    if kernel_size % 2 == 0:
        raise ValueError(f"{owner}.kernel_size must be odd, or 0 for none, got {kernel_size}")
    weight = torch.empty(num_heads, 1, kernel_size, 1)
    return nn.Parameter(nn.init.kaiming_uniform_(weight, a=5**0.5))
