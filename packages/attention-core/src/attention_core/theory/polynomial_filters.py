"""GFSA's approximation of a power of a map, and the graph filters that it contains.

Shapes: A (..., n, n) has rows of non-negative entries that sum to 1, or to less where masked.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.theory.bound import Bound


def bound_power_error(A: Tensor, K: int, printed: bool = False) -> Bound:
    r"""Bound the error of GFSA's approximation of the K-th power of a map.

    .. math:: E_K = \|A^K - (A + (K - 1)(A^2 - A))\|_\infty \le
        \min\Big(2(K - 1),\ \tfrac{(K - 1)(K - 2)}{2} \|A (I - A)^2\|_\infty\Big)

    The theorem says 2K (`printed`). A cyclic shift of more than K tokens attains 2(K - 1). The
    second term is from

    .. math:: x^K - x - (K - 1)(x^2 - x) = x (1 - x)^2 \sum_{m=0}^{K-3} (K - 2 - m) x^m

    The lower bound, K - 1 times the norm of A^2 - A less that of A^K - A, grows with K unless
    A^2 = A.

    Shapes: (..., n, n) -> bound of (...).

    Source: theorem 3.1 of https://arxiv.org/abs/2312.04234v1, its eqs. 12-14

    >>> shift = torch.eye(5).roll(1, 0)
    >>> bound_power_error(shift, 3).measured, bound_power_error(shift, 3).upper
    (tensor(4.), tensor(4.))
    >>> bound_power_error(shift, 3, printed=True).upper
    tensor(6.)
    """
    square, power = A @ A, torch.linalg.matrix_power(A, K)
    measured = _norm(power - (A + (K - 1) * (square - A)))
    if printed:
        return Bound(measured, torch.full_like(measured, 2 * K))
    curvature = _norm(A - 2 * square + square @ A)
    upper = (((K - 1) * (K - 2) / 2) * curvature).clamp(max=2 * (K - 1))
    return Bound(measured, upper, (K - 1) * _norm(square - A) - _norm(power - A))


def _norm(A: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(A, torch.inf)


class GFSAWeights(NamedTuple):
    """The arguments of `GFSA` by which it is another filter: `GFSA(heads, **weights._asdict())`."""

    K: int
    w0: float
    w1: float
    wK: float


def match_polynomial(gamma: tuple[float, ...], K: int = 2) -> GFSAWeights:
    r"""Return the weights of GFSA that make it a polynomial of a map of an order of up to two.

    .. math:: H = \sum_{k=0}^{2} \gamma_k A^k

    GCN, H = A, has gamma (0, 1); ChebNet of order one, theta_0 I - theta_1 A at the usual largest
    eigenvalue 2, (theta_0, -theta_1); GREAD, A + beta (A - A^2), (0, 1 + beta, -beta); GPR-GNN any.

    Source: section 3.3 of https://arxiv.org/abs/2312.04234v1

    >>> match_polynomial((0.5, 0.5, 0.75), K=4)
    GFSAWeights(K=4, w0=0.5, w1=1.0, wK=0.25)
    """
    if len(gamma) > 3:
        raise ValueError(f"theory.match_polynomial takes up to 3 coefficients, got {len(gamma)}")
    g0, g1, g2 = (*gamma, 0.0, 0.0, 0.0)[:3]
    if K == 1 and g2 != 0:
        raise ValueError("theory.match_polynomial needs K of at least 2 for a second order")
    wK = g2 / (K - 1) if K > 1 else 0.0
    return GFSAWeights(K, g0, g1 + (K - 2) * wK, wK)


def normalize_symmetrically(P: Tensor) -> Tensor:
    r"""Normalize the adjacency matrix exp(P) by the degrees of both sides.

    .. math:: S = D_{out}^{-1/2} e^P D_{in}^{-1/2}, \qquad
        D_{out} = \mathrm{diag}(e^P 1), \quad D_{in} = \mathrm{diag}(1^\top e^P)

    The texts take the softmax map D_out^{-1} exp(P) for this S, whose largest singular value is 1.

    Shapes: (..., n, n) -> (..., n, n).

    Source: section 2.2 and appendix N of https://arxiv.org/abs/2312.04234v1, sections 3.1 and 3.2
    of https://arxiv.org/abs/2505.08516

    >>> normalize_symmetrically(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    rows, columns = P.logsumexp(-1, keepdim=True), P.logsumexp(-2, keepdim=True)
    return (P - rows / 2 - columns / 2).exp()
