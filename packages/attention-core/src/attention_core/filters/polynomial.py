"""Polynomial graph filters in a basis of orthogonal polynomials, by their three-term recurrence."""

from typing import Literal

from torch import Tensor, nn

from attention_core.checks import check_choices, check_finite, check_sizes
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.mechanism import Mechanism
from attention_core.operators import Operator, Step, apply_polynomial

Basis = Literal["monomial", "jacobi", "chebyshev", "legendre"]
_JACOBI = {"chebyshev": (-0.5, -0.5), "legendre": (0.0, 0.0)}


def recurrence_steps(basis: Basis, K: int, a: float = 1.0, b: float = 1.0) -> list[Step]:
    r"""Return the coefficients of the three-term recurrence of a basis, for k = 1..K.

    .. math:: T_0 = 1, \qquad T_k(x) = (A_k x + B_k) T_{k-1}(x) - C_k T_{k-2}(x)

    For Jacobi(a, b), with c = a + b: A_1 = (c + 2) / 2, B_1 = (a - b) / 2, and from k = 2

    .. math::
        A_k = \frac{(2k+c)(2k+c-1)}{2k(k+c)}, \quad
        B_k = \frac{(2k+c-1)(a^2-b^2)}{2k(k+c)(2k+c-2)}, \quad
        C_k = \frac{(k+a-1)(k+b-1)(2k+c)}{k(k+c)(2k+c-2)}

    which is the Jacobi recursion; eq. 24 of AGF misprints 2k + c - 1 as 2k + c + 1. Chebyshev is
    Jacobi(-1/2, -1/2), in Jacobi's normalization, and Legendre is Jacobi(0, 0).

    Source: https://dlmf.nist.gov/18.9 and eqs. 22-26 of https://arxiv.org/abs/2505.08516

    >>> recurrence_steps("legendre", 2)
    [(1.0, 0.0, 0.0), (1.5, 0.0, 0.5)]
    """
    check_sizes("Polynomial", K=K)
    check_choices("Polynomial", basis=(basis, Basis))
    check_finite("Polynomial", a=a, b=b)
    if basis == "monomial":
        return [(1.0, 0.0, 0.0)] * K
    a, b = _JACOBI.get(basis, (a, b))
    return [_jacobi_step(k, a, b) for k in range(1, K + 1)]


def _jacobi_step(k: int, a: float, b: float) -> Step:
    c = round(a + b, 12)  # 1.1 - 5.1 misses the singular -4 by one bit
    if c == -2 or (k > 1 and (k + c == 0 or 2 * k + c - 2 == 0)):
        raise ValueError(
            f"the Jacobi recursion is singular at a = {a}, b = {b} for order {k}: "
            "choose a + b other than -2, -3, ..."
        )
    if k == 1:
        return (c + 2) / 2, (a - b) / 2, 0.0
    low, high = 2 * k + c - 2, 2 * k + c
    return (
        high * (high - 1) / (2 * k * (k + c)),
        (high - 1) * (a * a - b * b) / (2 * k * (k + c) * low),
        (k + a - 1) * (k + b - 1) * high / (k * (k + c) * low),
    )


class Polynomial(Mechanism):
    r"""The general graph filter of order K, one set of coefficients a head.

    .. math:: H = \sum_{k=0}^{K} \theta_k T_k(A)

    Evaluated by K applications of A to values, never by a power of A. It starts as H = A in every
    basis.

    Shapes: A (B, H, N, N), v (B, H, N, D) -> (B, H, N, D); theta is K + 1 vectors (H,).

    Source: eq. 3 of https://arxiv.org/abs/2312.04234, eq. 6 of https://arxiv.org/abs/2505.08516

    Args:
        K: Order.
        basis: Polynomials T_k.
        a: First parameter of Jacobi polynomials.
        b: Second parameter of Jacobi polynomials.

    >>> import torch
    >>> A, v = torch.full((1, 2, 3, 3), 1 / 3), torch.randn(1, 2, 3, 4)
    >>> torch.allclose(Polynomial(num_heads=2, K=3, basis="jacobi")(A, v), A @ v, atol=1e-6)
    True
    """

    def __init__(
        self, num_heads: int, K: int = 3, basis: Basis = "monomial", a: float = 1.0, b: float = 1.0
    ) -> None:
        super().__init__()
        check_sizes("Polynomial", num_heads=num_heads)
        self.K, self.basis, self.a, self.b = K, basis, a, b
        self.steps = recurrence_steps(basis, K, a, b)
        # T_1 = slope x + offset, so x = (T_1 - offset T_0) / slope
        slope, offset, _ = self.steps[0]
        start = [-offset / slope, 1 / slope] + [0.0] * (K - 1)
        self.theta = nn.ParameterList([head_coefficient(num_heads, value) for value in start])

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Filter the values."""
        return apply_polynomial(A, v, [per_head(w, v) for w in self.theta], self.steps)
