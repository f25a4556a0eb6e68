"""AttnScale (Wang et al. 2022), https://arxiv.org/abs/2203.05962"""

import torch
from torch import Tensor, nn

from attention_core.filters.coefficients import coefficient, per_head
from attention_core.operators import Operator, average, propagate


class AttnScale(nn.Module):
    r"""Attention with its high-pass part rescaled, one weight a head.

    .. math:: H = J + (1 + \omega)(A - J), \qquad H v = (1 + \omega) A v - \omega J v

    with J the uniform map over the allowed keys (1/n everywhere without a mask). Both terms are
    needed on values alone, so fused kernels stay. omega starts at 0, where H = A. With `masked`
    false J is uniform over all keys, forbidden ones too: as published for Swin's shifted windows.

    Shapes: A (B, H, N, N), v (B, H, N, D) -> (B, H, N, D); omega (H,).

    Raises ValueError for non-square A.

    Source: eqs. 7-9 of https://arxiv.org/abs/2203.05962

    >>> import torch
    >>> A, v = torch.full((1, 2, 3, 3), 1 / 3), torch.randn(1, 2, 3, 4)
    >>> torch.allclose(AttnScale(num_heads=2)(A, v), A @ v)
    True
    """

    def __init__(self, num_heads: int, masked: bool = True) -> None:
        super().__init__()
        self.masked = masked
        self.omega = coefficient(num_heads, 0.0)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Amplify what differs from the mean."""
        Av = propagate(A, v)  # in half precision under autocast, where v may be in float32
        # from Av by -omega, not from Jv by 1 + omega, which half precision would round to 1
        Jv = average(A, v) if self.masked else v.mean(-2, keepdim=True)
        return torch.lerp(Av, Jv.to(Av.dtype), -per_head(self.omega, Av))
