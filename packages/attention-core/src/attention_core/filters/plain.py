"""The baseline: attention as it is."""

from torch import Tensor, nn

from attention_core.checks import check_sizes
from attention_core.operators import Operator, apply_operator


class Plain(nn.Module):
    """Attention without a filter, H = A; the only filter that takes non-square maps, too.

    Shapes: A (B, H, N, M), v (B, H, M, D) -> (B, H, N, D).
    """

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        check_sizes("Plain", num_heads=num_heads)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Apply A."""
        return apply_operator(A, v)
