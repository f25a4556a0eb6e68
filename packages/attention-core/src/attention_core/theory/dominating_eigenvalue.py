"""The eigenvalue of a layer X + A X W_V W_O that dominates with depth (Dovonon et al. 2024).

The layer is I + H (x) A on stacked tokens, with H = (W_V W_O)^T and eigenvalues 1 + h_j a_i.

Shapes: H (d,) and A (n,) are eigenvalues, real or complex; a pair (j, i) indexes them.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]


class AttentionSpectrum(NamedTuple):
    """The eigenvalues of maps beside what proposition 1 and assumption 3.1 say of them.

    `real_share` is the share of real eigenvalues, which the proposition puts at 1. `second` is the
    second modulus, below 1 for a positive map. `positive` and `invertible` are the assumption.
    """

    eigenvalues: Tensor
    real_share: Tensor
    second: Tensor
    positive: Tensor
    invertible: Tensor


def measure_attention_spectrum(A: Tensor) -> AttentionSpectrum:
    r"""Compute the eigenvalues of maps, largest modulus first, and test what is assumed of them.

    .. math:: \lambda_1 = 1, \qquad |\lambda_i| < 1 \text{ for } i \ge 2 \text{ where } A > 0

    The proposition says that all are real and in (-1, 1]: the moduli are as stated. The assumption
    is a positive and invertible map.

    Shapes: (..., n, n) -> eigenvalues (..., n), other fields (...).

    Source: assumption 3.1 and proposition 1 of https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    >>> spectrum = measure_attention_spectrum(A)
    >>> spectrum.real_share, spectrum.second, spectrum.positive, spectrum.invertible
    (tensor(0.3333), tensor(0.7000), tensor(True), tensor(True))
    """
    values = torch.linalg.eigvals(A)
    values = values.gather(-1, values.abs().argsort(-1, descending=True))
    limit = 100 * torch.finfo(A.dtype).eps
    return AttentionSpectrum(
        eigenvalues=values,
        real_share=(values.imag.abs() <= limit).to(A.dtype).mean(-1),
        second=values[..., 1].abs() if A.shape[-1] > 1 else values[..., 0].abs() * 0,
        positive=(A > 0).all(-1).all(-1),
        invertible=torch.linalg.matrix_rank(A) == A.shape[-1],
    )


def find_dominating_pairs(H: Tensor, A: Tensor, tolerance: float = 1e-9) -> list[Pair]:
    r"""Find all pairs of eigenvalues of the largest modulus, up to a relative tolerance.

    .. math:: (j^*, i^*) = \arg\max_{j, i} |1 + \lambda^H_j \lambda^A_i|

    `spectral.dominating_eigenvalue_shares` counts them over heads and layers.

    Source: definition 3.2 of https://arxiv.org/abs/2401.04301v2

    >>> find_dominating_pairs(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, -0.5]))
    [(0, 1), (1, 0)]
    """
    growth = (1 + H.unsqueeze(-1) * A).abs()
    return [(int(j), int(i)) for j, i in (growth >= growth.max() * (1 - tolerance)).nonzero()]


def choose_dominating_pair(H: Tensor, A: Tensor) -> Pair:
    r"""Choose the dominating pair from one candidate at the Perron value and d at the smallest.

    .. math:: \max\Big(|1 + \lambda^H_d|,\ \max_j |1 + \lambda^H_j \lambda^A_1|\Big), \qquad
        |1 + \lambda^H_1| \le \dots \le |1 + \lambda^H_d|

    This corrects theorem 3.3 and B.1, whose rules look at too few j. The modulus of 1 + h a is
    convex in a, so that its maximum over the real eigenvalues of A is at an end of their range.

    Source: in place of theorems 3.3 and B.1 of https://arxiv.org/abs/2401.04301v2

    >>> choose_dominating_pair(torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 0.1]))
    (1, 1)
    """
    limit = 100 * torch.finfo(A.dtype).eps * A.abs().max()
    if torch.is_complex(A) and (A.imag.abs() > limit).any():
        raise ValueError("theory sorts the eigenvalues of A, which must be real here")
    smallest, largest = int(A.real.argmin()), int(A.real.argmax())
    d, j = int((1 + H).abs().argmax()), int((1 + H * A[smallest]).abs().argmax())
    at_largest, at_smallest = (1 + H[d] * A[largest]).abs(), (1 + H[j] * A[smallest]).abs()
    return (d, largest) if at_largest > at_smallest else (j, smallest)


def predict_effect(H: Tensor) -> Literal["smooths", "sharpens"] | None:
    r"""Predict from H alone if a layer smooths or sharpens; None where H does not decide it.

    .. math:: \lambda^H_j \in [-1, 0) \ \forall j: \text{ sharpens}, \qquad
        \lambda^H_j \in (0, \infty) \ \forall j: \text{ smooths}

    True for complex eigenvalues of A too, by the triangle inequality. A needs two tokens. The
    clipped spectra of section 4 contain 0, which is in neither range.

    Source: corollary 2 of https://arxiv.org/abs/2401.04301v2

    >>> predict_effect(torch.tensor([-1.0, -0.5])), predict_effect(torch.tensor([0.0, 1.0]))
    ('sharpens', None)
    """
    if torch.is_complex(H) and (H.imag != 0).any():
        return None
    if (H.real > 0).all():
        return "smooths"
    return "sharpens" if ((H.real >= -1) & (H.real < 0)).all() else None
