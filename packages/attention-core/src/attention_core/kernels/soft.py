"""SOFT, softmax-free attention (Lu et al. 2021), https://arxiv.org/abs/2110.11945"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.checks import check_sizes
from attention_core.kernels.common import (
    Kernel,
    at_least_float32,
    autocast_disabled,
    key_mask,
    zero_padding,
)
from attention_core.kernels.landmark import LandmarkOperator, PlusConvolution, make_depthwise_weight

RIDGE = 0.01  # added to the diagonal before inverting


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    r"""Compute the Gaussian kernel of each pair of rows.

    .. math:: k(x, y) = \exp(-\tfrac12 |x - y|^2)

    Shapes: x (..., N, d), y (..., M, d) -> (..., N, M).
    """
    of_x, of_y = (t.square().sum(-1, keepdim=True) / 2 for t in (x, y))
    return (x @ y.mT).sub_(of_x).sub_(of_y.mT).exp_()  # in place: nothing reads them backward


class SOFT(Kernel):
    r"""A Gaussian map of the tokens with themselves, through learned landmarks.

    .. math::
        A = K_1 S^+ K_1^\top, \quad K_1 = k(q, y), \quad S = k(y, y), \quad
        y = \mathrm{GELU}(\mathrm{LN}(W * q)), \qquad k(x, y) = e^{-|x - y|^2 / 2}

    with q over d^(1/4) and W a convolution over windows of tokens, shared by the heads. There is
    one map for queries and keys: k and its projection are not used. S^+ is (S + 0.01 I)^-1, to
    which the published iteration of Newton converges.

    The released code is for grids of patches without padding; this is our version for sequences.
    The SOFT of the UEA tables has no public code. The last window is filled with zeros, windows of
    padding alone are no landmarks, and padding equals truncation.

    Shapes: those of `Kernel`, x unused. For m = N / ratio landmarks time O(N m d + m^3), memory
    O(N m): linear in N only if `ratio` grows with it, as in the paper, which keeps 49 landmarks.

    Source: https://arxiv.org/abs/2110.11945

    Args:
        ratio: Tokens of a window, each of which gives a landmark.
        iterations: Accepted from older configs; it has no effect.
        kernel_size: Width of a convolution of the values; 0 omits it.

    >>> A = SOFT(8, 2, ratio=3)(*torch.randn(2, 1, 2, 7, 4), None)
    >>> A.left.shape, torch.allclose(A.dense(), A.dense().mT, atol=1e-5)
    (torch.Size([1, 2, 7, 3]), True)
    """

    def __init__(
        self, dim: int, num_heads: int, ratio: int = 8, iterations: int = 20, kernel_size: int = 0
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"iterations": iterations, "kernel_size": kernel_size}
        check_sizes("SOFT", ratio=ratio)
        self.ratio, width = ratio, dim // num_heads
        self.pool = nn.Linear(ratio * width, width, bias=False)  # a convolution of stride ratio
        self.norm = nn.LayerNorm(width)
        self.conv = make_depthwise_weight("SOFT", num_heads, kernel_size)

    def forward(
        self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None
    ) -> LandmarkOperator | PlusConvolution:
        """Compute the map of these tokens."""
        valid = key_mask(mask, q, q)
        q = zero_padding(q * q.shape[-1] ** -0.25, valid)
        filled = F.pad(q, (0, 0, 0, -q.shape[2] % self.ratio))
        m = filled.shape[2] // self.ratio
        windows = filled.reshape(*q.shape[:2], m, self.pool.in_features)  # (B, H, m, ratio d)
        y = F.gelu(self.norm(self.pool(windows)))
        with autocast_disabled(q):
            q, y = at_least_float32(q), at_least_float32(y)
            left, S = gaussian_kernel(q, y), gaussian_kernel(y, y)
            eye = torch.eye(m, dtype=S.dtype, device=S.device)
            if valid is not None:  # windows of padding are no landmarks: their block of S is I
                windows = F.pad(valid, (0, -valid.shape[-1] % self.ratio))
                filled = windows.view(valid.shape[0], 1, 1, m, self.ratio).any(-1)  # (B, 1, 1, m)
                left = left * valid.mT * filled
                S = torch.where(filled & filled.mT, S, eye)
            core = torch.linalg.inv(S + RIDGE * eye)
        A = LandmarkOperator(left, core, left, valid)
        return A if self.conv is None else PlusConvolution(A, self.conv, valid)
