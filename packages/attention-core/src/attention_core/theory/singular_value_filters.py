"""Filters of the singular values of a map (Wi, Choi, Park 2025).

Shapes: A (..., n, n) is a map, sigma (..., n) are its singular values, largest first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.operators import Step
from attention_core.operators.polynomial import basis_terms
from attention_core.theory.bound import Bound


def bound_spectral_norm(A: Tensor) -> Bound:
    r"""Bound the largest singular value of a row-stochastic map from below.

    .. math:: 1 \le \sigma_1(A) \le \sqrt{\max_j \textstyle\sum_i A_{ij}}

    The texts take it to be 1, which is so only if the columns sum to 1 too.

    Shapes: (..., n, n) -> bound of (...).

    Source: section 3.2 and the proof of theorem 2 of https://arxiv.org/abs/2505.08516

    >>> bound_spectral_norm(torch.tensor([[0.9, 0.1], [0.9, 0.1]])).measured
    tensor(1.2806)
    """
    measured = torch.linalg.matrix_norm(A, 2)
    return Bound(measured, A.sum(-2).amax(-1).sqrt(), torch.ones_like(measured))


def measure_gain_ratios(
    sigma: Tensor, theta: Sequence[float], steps: Sequence[Step] | None = None
) -> Tensor:
    r"""Compute the gains of a filter relative to that of the largest singular value.

    .. math:: |g(\sigma_i) / g(\sigma_1)|, \quad i \ge 2, \qquad
        g(\sigma) = \sum_{k=0}^{K} \theta_k T_k(\sigma)

    The theorem: below 1 for non-negative theta that sum to 1, with one beyond theta_0, of monomials
    (no `steps`). But sigma_1 is a low frequency only if the columns of A sum to 1 too.

    Shapes: sigma (..., n) -> (..., n - 1).

    Source: theorem 2, first half, of https://arxiv.org/abs/2505.08516

    >>> measure_gain_ratios(torch.tensor([1.0, 0.5]), [0.5, 0.5])
    tensor([0.7500])
    """
    steps = [(1.0, 0.0, 0.0)] * (len(theta) - 1) if steps is None else steps
    terms = basis_terms(steps, lambda term: sigma * term, torch.ones_like(sigma))
    gains = torch.stack([w * term for w, term in zip(theta, terms, strict=True)]).sum(0).abs()
    return gains[..., 1:] / gains[..., :1]


class HighPassRatios(NamedTuple):
    """The ratios of the second half of theorem 2 at order K, their limit, and if it is reached."""

    ratios: Tensor
    limit: Tensor
    converges: Tensor


def measure_high_pass_ratios(sigma: Tensor, alpha: float, K: int) -> HighPassRatios:
    r"""Compute the relative gains of alternating coefficients, and their limit for large K.

    .. math:: \theta_k = (-\alpha)^k, \qquad
        \Big|\frac{g(\sigma_i)}{g(\sigma_1)}\Big| \to
        \frac{1 + \alpha \sigma_1}{1 + \alpha \sigma_i} > 1 \quad\text{where } \alpha \sigma_1 < 1

    The theorem asks for 0 < alpha < 1 alone. For alpha sigma_1 > 1 the series of sigma_1 diverges
    and the ratios tend to 0: the filter passes what it should stop.

    Shapes: sigma (..., n) -> ratios and limit (..., n - 1), converges (...).

    Source: theorem 2, second half, of https://arxiv.org/abs/2505.08516

    >>> high_pass = measure_high_pass_ratios(torch.tensor([1.0, 0.5]), 0.5, K=30)
    >>> high_pass.ratios, high_pass.limit
    (tensor([1.2000]), tensor([1.2000]))
    """
    ratios = measure_gain_ratios(sigma, [(-alpha) ** k for k in range(K + 1)])
    largest = sigma[..., :1]
    limit = (1 + alpha * largest) / (1 + alpha * sigma[..., 1:])
    return HighPassRatios(ratios, limit, alpha * largest[..., 0] < 1)
