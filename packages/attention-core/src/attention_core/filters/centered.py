"""Centered self-attention (Ali, Galanti, Wolf 2023), https://arxiv.org/abs/2306.01610"""

from torch import Tensor, nn

from attention_core.checks import check_sizes
from attention_core.operators import Operator, average, propagate


class CenteredAttention(nn.Module):
    r"""Attention without its low-pass part: the rows of H sum to zero.

    .. math:: H = A - J, \qquad H v = A v - J v

    with J the uniform map over the allowed keys. It has no parameters and does not start as A. No
    code is released: the formula is that of papers which cite it, and which layers are centered is
    not said there.

    Shapes: A (B, H, N, N), v (B, H, N, D) -> (B, H, N, D).

    Source: https://arxiv.org/abs/2306.01610

    >>> import torch
    >>> A, v = torch.full((1, 2, 3, 3), 1 / 3), torch.randn(1, 2, 3, 4)
    >>> CenteredAttention()(A, v).abs().max() < 1e-6
    tensor(True)
    """

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        check_sizes("CenteredAttention", num_heads=num_heads)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Subtract the mean of the values."""
        return propagate(A, v) - average(A, v)
