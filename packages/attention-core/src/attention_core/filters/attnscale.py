"""AttnScale (Wang et al. 2022), https://arxiv.org/abs/2203.05962"""

import torch
from torch import Tensor

from attention_core.checks import check_sizes
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.mechanism import Mechanism, find_allowed_tokens
from attention_core.operators import Operator, average, propagate


class AttnScale(Mechanism):
    r"""Attention with a rescaled high-pass part, one weight a head.

    .. math:: H = J + (1 + \omega)(A - J), \qquad H v = (1 + \omega) A v - \omega J v

    with J the uniform map over the allowed keys (1/n everywhere without a mask). A v and J v
    suffice, so that fused attention is used. omega starts at 0, where H = A.

    Shapes: A (B, H, N, N), v (B, H, N, D) -> (B, H, N, D); omega (H,).

    Source: eqs. 7-9 of https://arxiv.org/abs/2203.05962

    Args:
        masked: If false, J is uniform over all keys, also forbidden ones, as published for Swin's
            shifted windows.

    >>> import torch
    >>> A, v = torch.full((1, 2, 3, 3), 1 / 3), torch.randn(1, 2, 3, 4)
    >>> torch.allclose(AttnScale(num_heads=2)(A, v), A @ v)
    True
    """

    def __init__(self, num_heads: int, masked: bool = True) -> None:
        super().__init__()
        check_sizes("AttnScale", num_heads=num_heads)
        self.masked = masked
        self.omega = head_coefficient(num_heads, 0.0)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Amplify the difference from the mean."""
        if not self.masked:
            name, mask = "AttnScale(masked=False)", getattr(A, "mask", None)
            if getattr(A, "is_causal", False) or hasattr(A, "_prepend_past"):
                raise ValueError(f"{name} averages over future tokens: it cannot be causal")
            if mask is not None:
                find_allowed_tokens(mask, name)
        Av = propagate(A, v)  # half precision under autocast, even if v is float32
        # start from Av with -omega: 1 + omega would be rounded to 1 in half precision
        Jv = average(A, v) if self.masked else v.mean(-2, keepdim=True)
        return torch.lerp(Av, Jv.to(Av.dtype), -per_head(self.omega, Av))
