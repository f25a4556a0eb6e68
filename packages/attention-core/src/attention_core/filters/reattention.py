"""Re-attention of DeepViT (Zhou et al. 2021), https://arxiv.org/abs/2103.11886"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.checks import check_finite, check_sizes
from attention_core.operators import Operator, allowed_pairs, propagate


class ReAttention(nn.Module):
    r"""Attention maps mixed across heads, then normalized.

    .. math:: H = \mathrm{BN}(\Theta A + b) \cdot s

    with Theta (H, H) and b from a 1 x 1 convolution and one batch normalisation a head, over the
    batch and both token axes; s is `scale`. Mixing heads needs the map itself: O(N^2) memory, and
    the dropout of a fused `Softmax` does not act. Training and evaluation differ (batch or running
    statistics), and H does not start as A. Bias and normalization also fill masked pairs: use it
    without padding and causality (it warns).

    Shapes: A (B, H, N, N), a tensor or an operator with `dense()`, v (B, H, N, D) -> (B, H, N, D).

    Source: https://arxiv.org/abs/2103.11886, Re-attention (whose Theta^T is our Theta)

    Args:
        scale: Factor s of the mixed maps: 1 or, for DeepViT-S, head_dim^-0.5.

    >>> import torch
    >>> A, v = torch.rand(2, 3, 5, 5).softmax(-1), torch.randn(2, 3, 5, 4)
    >>> ReAttention(num_heads=3)(A, v).shape
    torch.Size([2, 3, 5, 4])
    """

    def __init__(self, num_heads: int, scale: float = 1.0) -> None:
        super().__init__()
        check_sizes("ReAttention", num_heads=num_heads)
        check_finite("ReAttention", scale=scale)
        self.scale = scale
        self.mix = nn.Conv2d(num_heads, num_heads, kernel_size=1)
        self.norm = nn.BatchNorm2d(num_heads)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Form the map, mix its heads, normalize, apply."""
        mask: Any = getattr(A, "mask", None)
        # a compiler cannot branch on a value, and fake and meta tensors have none
        is_known = type(mask) is Tensor and not mask.is_meta
        if not torch.compiler.is_compiling() and (
            getattr(A, "is_causal", False) or (is_known and not allowed_pairs(mask).all())
        ):
            warnings.warn(
                "re-attention fills pairs that a mask forbids: tokens see padding or the future",
                stacklevel=2,
            )
        A = A if isinstance(A, Tensor) else A.dense()  # type: ignore[attr-defined]
        heads = self.mix.in_channels
        if A.ndim != 4 or A.shape[1] != heads:
            raise ValueError(f"a filter of {heads} heads got a map of shape {tuple(A.shape)}")
        # in the weights' dtype: half precision is too coarse for the statistics of a map
        H = self.norm(self.mix(A.to(self.mix.weight.dtype))) * self.scale
        return propagate(H.to(v.dtype), v).to(v.dtype)  # autocast may lower the precision
