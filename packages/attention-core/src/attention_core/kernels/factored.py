"""What landmark kernels share: a map of three factors, and a convolution beside it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.kernels.parts import exact, real
from attention_core.operators import LowRank, Softmax, apply, masked_mean


class Factored(LowRank):
    r"""A map of rank m held by three factors, applied in their precision.

    .. math:: A = L C R^\top, \qquad A v = L (C (R^\top v))

    Shapes: left (B, H, N, m), core (B, H, m, m), right (B, H, N, m), mask (B, 1, 1, N).
    O(N m D + m^2 D) time: the core is never multiplied into a factor of N rows.

    Source: https://arxiv.org/abs/2102.03902

    >>> Factored(torch.ones(2, 1), torch.tensor([[3.0]]), torch.ones(2, 1)).dense()
    tensor([[3., 3.],
            [3., 3.]])
    """

    def __init__(
        self, left: Tensor, core: Tensor, right: Tensor, mask: Tensor | None = None
    ) -> None:
        super().__init__(left, right, mask)
        self.core = core

    def __matmul__(self, v: Tensor) -> Tensor:
        """Contract the tokens, mix the landmarks, expand."""
        # the inverse of a nearly singular core would multiply the rounding of half precision
        with exact(v):
            z = self.left @ (self.core @ (self.right.mT @ v.to(self.right.dtype)))
        return z.to(v.dtype)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, N)."""
        return self.left @ self.core @ self.right.mT


class Convolved:
    r"""A map with a convolution over the tokens beside it, one filter a head.

    .. math:: A v = B v + m \odot (w * (m \odot v))

    Shapes: weight (H, 1, odd, 1), mask m (B, 1, 1, N) boolean or None, v (B, H, N, D). Beyond the
    ends, and where the mask is False, there are zeros.

    Source: https://arxiv.org/abs/2102.03902

    >>> zero = LowRank(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1))
    >>> A = Convolved(zero, torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3, 1))
    >>> (A @ torch.tensor([1.0, 10.0, 100.0]).view(1, 1, 3, 1)).flatten()
    tensor([  2.,  21., 210.])
    """

    def __init__(self, base: LowRank | Softmax, weight: Tensor, mask: Tensor | None = None) -> None:
        self.base, self.weight, self.mask = base, weight, mask

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the map, and convolve."""
        return apply(self.base, v) + self.convolve(v).to(v.dtype)

    def convolve(self, v: Tensor) -> Tensor:
        """The second term alone."""
        weight = self.weight.to(v.dtype)
        pad = (weight.shape[-2] // 2, 0)
        z = F.conv2d(real(v, self.mask), weight, padding=pad, groups=len(weight))
        return real(z, self.mask)

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, N): O(N^2) memory, for looking at it."""
        return self @ self.eye()

    def eye(self) -> Tensor:
        """The identity as values, (B, H, N, N)."""
        return self.base.eye()


def depthwise(num_heads: int, kernel_size: int) -> nn.Parameter | None:
    r"""The filters of `Convolved`, (H, 1, kernel_size, 1), started as torch starts a convolution.

    None where kernel_size is 0.

    Raises ValueError for an even or a negative size, which has no centre.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html

    >>> depthwise(2, 3).shape, depthwise(2, 0)
    (torch.Size([2, 1, 3, 1]), None)
    """
    if kernel_size == 0:
        return None
    if kernel_size < 0 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd, or 0 for no convolution, got {kernel_size}")
    weight = torch.empty(num_heads, 1, kernel_size, 1)
    return nn.Parameter(nn.init.kaiming_uniform_(weight, a=5**0.5))
