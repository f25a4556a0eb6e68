"""Attentive graph filter (Wi, Choi, Park 2025), https://arxiv.org/abs/2505.08516"""

from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.checks import (
    check_choices,
    check_finite,
    check_nonnegative,
    check_sizes,
    check_tokens,
)
from attention_core.filters.polynomial import Basis, recurrence_steps
from attention_core.kernels.common import Kernel, at_least_float32, key_mask
from attention_core.kernels.pointwise_polynomial import pointwise_polynomial
from attention_core.operators import LowRank

Rho = Literal["softmax", "sigmoid", "tanh", "none"]
SingularValues = Literal["filtered", "generated", "learned", "ones"]
PenaltyVariant = Literal["released", "paper", "padded"]


class GraphSVD(LowRank):
    r"""The map of AGF, with named factors.

    .. math:: A = (U \odot g) V^\top

    Shapes: U, V (B, H, N, d), g broadcasts to U, mask (B, 1, 1, N) boolean or None.

    Source: eq. 7 of https://arxiv.org/abs/2505.08516
    """

    def __init__(self, U: Tensor, g: Tensor, V: Tensor, mask: Tensor | None = None) -> None:
        super().__init__(U * g, V, mask)
        self.U, self.g, self.V = U, g, V


def orthogonality_penalty(
    U: Tensor, V: Tensor, penalty_variant: PenaltyVariant = "released", mask: Tensor | None = None
) -> Tensor:
    r"""Measure how far the columns of U and V are from orthonormal.

    .. math:: \mathcal{L} = c \sum_{i,j} |U^\top U - I|_{ij} + |V^\top V - I|_{ij}

    with c = 1/d^2 (the mean over entries) in the released code, and c = 1/n^2 in the paper, which
    does not specify the norm. The result is a mean over batch and heads. For n >= d^2 and rho =
    softmax the term of U is constant and has no gradient. Padding does not count, except that
    "padded", the released variant as run on LRA, has the rows of U of padding too.

    Shapes: U, V (B, H, N, d), mask (B, 1, 1, N) -> scalar.

    Source: eq. 11 of https://arxiv.org/abs/2505.08516

    >>> orthogonality_penalty(torch.eye(3)[None, None], torch.eye(3)[None, None])
    tensor(0.)
    """
    check_choices("orthogonality_penalty", penalty_variant=(penalty_variant, PenaltyVariant))
    if mask is not None:
        U, V = U if penalty_variant == "padded" else U * mask.mT, V * mask.mT
    d = U.shape[-1]
    eye = torch.eye(d, dtype=U.dtype, device=U.device)
    deviation = (U.mT @ U - eye).abs().sum((-2, -1)) + (V.mT @ V - eye).abs().sum((-2, -1))
    if penalty_variant != "paper":
        return (deviation / d**2).mean()
    n = U.shape[-2] if mask is None else mask.sum(-1).squeeze(-1).clamp(min=1)
    return (deviation / n**2).mean()


class AGF(Kernel):
    r"""Attention generated in the singular value domain, filtered token by token; linear in N.

    .. math::
        A = (U \odot g(s)) V^\top, \qquad U = \rho(q), \quad V^\top = \rho(k^\top), \quad
        s = \sigma(x W_\Sigma + b_\Sigma), \quad g(s) = \sum_{k=0}^{K} \theta_k T_k(s)

    Used as the kernel of `SelfAttention`, whose query and key projections are the paper's maps of U
    and V. rho is a softmax over features for U and over tokens for V. theta_k is the tanh of a
    stored weight that starts at 0.

    Shapes: those of `Kernel`. Time O(N d D), memory O(N D).

    Source: eqs. 6-11 and 22-26 of https://arxiv.org/abs/2505.08516

    Args:
        K: Order of the polynomial g.
        basis: Polynomials T_k.
        a: First parameter of Jacobi polynomials.
        b: Second parameter of Jacobi polynomials.
        pin_theta0: Fix theta_0 at 1; else the map starts at zero.
        gamma: Weight of the penalty.
        penalty_variant: The paper's, or one of two of the released code: see
            `orthogonality_penalty`.
        rho: Function that makes U and V.
        singular_values: An ablation: `filtered` is AGF, `generated` omits the polynomial (g = s),
            `learned` is H_SVD (one vector a head, from 1), `ones` is H_UV.
        bias: Add b_Sigma.

    >>> agf, x = AGF(8, 2, K=3), torch.randn(1, 5, 8)
    >>> A = agf(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), x)
    >>> rows = A @ torch.ones(1, 2, 5, 1)  # theta_0 = 1: it starts as U V^T, row-stochastic
    >>> torch.allclose(rows, torch.ones(()))
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        K: int = 4,
        basis: Basis = "jacobi",
        a: float = 1.0,
        b: float = 0.2,
        pin_theta0: bool = True,
        gamma: float = 0.0,
        penalty_variant: PenaltyVariant = "released",
        rho: Rho = "softmax",
        singular_values: SingularValues = "filtered",
        bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"K": K, "basis": basis, "a": a, "b": b, "bias": bias}
        check_choices("AGF", rho=(rho, Rho), penalty_variant=(penalty_variant, PenaltyVariant))
        check_choices("AGF", singular_values=(singular_values, SingularValues))
        check_choices("AGF", basis=(basis, Basis))
        check_sizes("AGF", K=K)
        check_finite("AGF", a=a, b=b)
        check_nonnegative("AGF", gamma=gamma)
        self.dim, self.num_heads, self.gamma, self.pin_theta0 = dim, num_heads, gamma, pin_theta0
        self.penalty_variant, self.rho, self.singular_values = penalty_variant, rho, singular_values
        if singular_values in ("filtered", "generated"):
            self.sigma = nn.Linear(dim, dim, bias=bias)
        if singular_values == "filtered":
            self.steps = recurrence_steps(basis, K, a, b)
            self.theta = nn.Parameter(torch.zeros(K + 1 - pin_theta0))
        if singular_values == "learned":
            self.singular = nn.Parameter(torch.ones(dim))

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> GraphSVD:
        """Generate the map of these tokens."""
        valid = key_mask(mask, q, k)
        if self.rho == "softmax":
            U = q.softmax(-1)
            if valid is not None:
                k = k.masked_fill(~valid.mT, torch.finfo(k.dtype).min)
            V = k.softmax(-2)
        else:
            U, V = (q, k) if self.rho == "none" else (getattr(t, self.rho)() for t in (q, k))
        if valid is not None:
            V = V * valid.mT
        return GraphSVD(U, self.gains(x).to(U.dtype), V, valid)

    def gains(self, x: Tensor) -> Tensor:
        """Compute g of eq. 9, the factor of the singular vectors, broadcastable to (B, H, N, d)."""
        if self.singular_values == "ones":
            return x.new_ones(())
        if self.singular_values == "learned":
            return self.singular.view(self.num_heads, 1, -1)
        check_tokens("AGF", x, self.dim)
        # half precision would put an error of 1 % on high orders
        s = at_least_float32(self.sigma(x)).sigmoid()  # (B, N, D)
        s = s.view(*x.shape[:2], self.num_heads, self.dim // self.num_heads).transpose(1, 2)
        return s if self.singular_values == "generated" else self.response(s)

    def response(self, s: Tensor) -> Tensor:
        """Evaluate the learned filter g(s) at singular values s of any shape, in (0, 1)."""
        return pointwise_polynomial(s, self.coefficients(), self.steps)

    def coefficients(self) -> Tensor:
        """Return theta_0 .. theta_K, (K + 1,); the singular values of H_SVD; nothing for H_UV."""
        if self.singular_values != "filtered":
            return self.singular if self.singular_values == "learned" else torch.zeros(0)
        theta = self.theta.tanh()
        return torch.cat([theta.new_ones(1), theta]) if self.pin_theta0 else theta

    def penalty(self, A: GraphSVD) -> Tensor:
        """Return gamma times the `orthogonality_penalty` of a map that this kernel generated."""
        return self.gamma * orthogonality_penalty(A.U, A.V, self.penalty_variant, A.mask)
