"""The features that a repeated layer X + A X W converges to (Dovonon et al. 2024).

Shapes: X (n, d) are tokens, A (n, n) an attention map, W = W_V W_O (d, d), and H = W^T.
"""

from typing import Literal

import torch
from torch import Tensor

from attention_core.spectral import dominating_eigenvalue_shares
from attention_core.theory.dominating_eigenvalue import Pair, find_dominating_pairs


def predict_features(
    X: Tensor, A: Tensor, W: Tensor, steps: int, tolerance: float = 1e-9
) -> Tensor:
    r"""Predict the features after many layers by the dominating terms alone.

    .. math:: X_L / |\mu|^L \to \sum_{(j, i) \in \mathcal{E}}
        \Big(\frac{1 + \lambda^H_j \lambda^A_i}{|\mu|}\Big)^L s_{j,i}\, v^A_i v_j^{H \top},
        \qquad S = V_A^{-1} X V_H^{-\top}

    over the dominating pairs E. The paper states it for X_L, without the quotient. It needs A and H
    to be diagonalizable, and coefficients s that are not 0.

    Shapes: X (n, d), A (n, n), W (d, d) -> (n, d).

    Source: theorem 3.4 of https://arxiv.org/abs/2401.04301v2

    >>> X, A = torch.tensor([[1.0], [3.0]]), torch.full((2, 2), 0.5)
    >>> predict_features(X, A, torch.eye(1), steps=20)
    tensor([[2.0000],
            [2.0000]])
    """
    a, V_A = torch.linalg.eig(A)
    h, V_H = torch.linalg.eig(W.mT)
    s = torch.linalg.solve(V_A, X.to(V_A.dtype))
    s = torch.linalg.solve(V_H, s.mT).mT
    growth = 1 + torch.outer(a, h)
    largest = growth.abs().max()
    turns = (growth / largest) ** steps
    dominating = growth.abs() >= largest * (1 - tolerance)
    return (V_A @ (s * turns * dominating) @ V_H.mT).real


def measure_feature_rank(X: Tensor, A: Tensor, W: Tensor, tolerance: float = 1e-9) -> Pair:
    r"""Return the rank of the dominating terms, and the rank that the corollary predicts.

    .. math:: \mathrm{rank}\Big(\lim X_L / |\mu|^L\Big) = |\mathcal{U}^*|

    with U* a largest set of dominating pairs that share no index, and for almost all X.

    Shapes: X (n, d), A (n, n), W (d, d) -> two whole numbers.

    Source: corollary 1 of https://arxiv.org/abs/2401.04301v2

    >>> measure_feature_rank(torch.ones(3, 3), torch.eye(3), torch.eye(3))
    (1, 3)
    """
    limit, generator = predict_features(X, A, W, 0, tolerance), torch.Generator().manual_seed(0)
    pairs = find_dominating_pairs(torch.linalg.eigvals(W.mT), torch.linalg.eigvals(A), tolerance)
    rank = torch.linalg.matrix_rank(limit, rtol=1e3 * torch.finfo(X.dtype).eps)
    # the size of a largest matching is the rank of almost all matrices with entries at these pairs
    entries = torch.zeros(len(W), len(A), dtype=torch.float64)
    places = torch.tensor(pairs).unbind(-1)
    entries[places] = torch.rand(len(pairs), dtype=torch.float64, generator=generator)
    return int(rank), int(torch.linalg.matrix_rank(entries))


def classify_update(H: Tensor, A: Tensor, tolerance: float = 1e-9) -> Literal[1, 2, 3]:
    r"""Name the case of theorem 3.5 by the eigenvalues of H and A.

    .. math:: \frac{\|\mathrm{HFC}[X_L]\|}{\|\mathrm{LFC}[X_L]\|} \to 0 \ \text{in case 1},
        \qquad \not\to 0 \ \text{in cases 2 and 3}

    1: the dominating pairs are at the Perron value of A alone, and the layer is a low-pass filter.
    2: at other eigenvalues alone. 3: at both; an eigenvalue 0 of H grows by 1 at every eigenvalue
    of A. All cases hold for almost all X.

    Shapes: eigenvalues H (d,), A (n,).

    Source: theorem 3.5 of https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([1.0, 0.5])
    >>> [classify_update(torch.tensor(H), A) for H in ([0.5, 1.0], [-0.5, -1.0], [-0.5, 0.0])]
    [1, 2, 3]
    """
    return (1, 2, 3)[int(dominating_eigenvalue_shares(H, A, tolerance).argmax())]
