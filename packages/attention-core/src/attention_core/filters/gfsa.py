"""Graph filter-based self-attention (Choi et al. 2024), https://arxiv.org/abs/2312.04234"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from attention_core.checks import check_choices, check_finite, check_sizes
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.mechanism import Mechanism
from attention_core.operators import Operator, apply_polynomial

Weight = Literal["w0", "w1", "wK"]


class GFSA(Mechanism):
    r"""A graph filter of order K, its K-th power approximated to first order.

    .. math:: H = w_0 I + w_1 A + w_K (A + (K - 1)(A^2 - A))

    Shapes: A (B, H, N, N), v (B, H, N, D) -> (B, H, N, D); w0, w1, wK (H,).

    Source: eqs. 4-6 of https://arxiv.org/abs/2312.04234v1

    Args:
        K: Order; H is of order two in A for every K, which scales the steps of wK.
        learn: Weights that are learned: wK in the released code; the text leaves w0 and w1 open.
        w0: Start of the weight of the identity.
        w1: Start of the weight of A.
        wK: Start of the weight of the power; at 0, with the other defaults, H starts as A.

    >>> import torch
    >>> A, v = torch.full((1, 2, 3, 3), 1 / 3), torch.randn(1, 2, 3, 4)
    >>> torch.allclose(GFSA(num_heads=2, K=4)(A, v), A @ v)
    True
    """

    def __init__(
        self,
        num_heads: int,
        K: int = 3,
        learn: Sequence[Weight] = ("wK",),
        w0: float = 0.0,
        w1: float = 1.0,
        wK: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes("GFSA", num_heads=num_heads, K=K)
        check_finite("GFSA", w0=w0, w1=w1, wK=wK)
        for weight in learn if isinstance(learn, Sequence) else [learn]:
            check_choices("GFSA", learn=(weight, Weight))
        self.K, self.learn = K, tuple(learn)
        self.w0 = head_coefficient(num_heads, w0, "w0" in learn)
        self.w1 = head_coefficient(num_heads, w1, "w1" in learn)
        self.wK = head_coefficient(num_heads, wK, "wK" in learn)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Apply H, collected by powers of A."""
        w0, w1, wK = (per_head(w, v) for w in (self.w0, self.w1, self.wK))
        return apply_polynomial(A, v, [w0, w1 + (2 - self.K) * wK, (self.K - 1) * wK])
