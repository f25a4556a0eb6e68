"""Repeated attention as a low-pass filter (Wang et al. 2022; theorem 1 of AGF).

Shapes: A (..., n, n) is row-stochastic, X (..., n, d) are tokens. DC is the mean over tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_core.checks import check_callables, check_sizes, check_tensors
from attention_core.spectral import hfc_lfc, high_frequency_norm
from attention_core.theory.bound import Bound
from attention_core.theory.smoothing_rate import measure_alpha


def trace_hfc_lfc(
    layer: Callable[[Tensor], Tensor], X: Tensor, steps: int, num_low: int = 1
) -> Tensor:
    r"""Compute the ratio of high to low frequencies of tokens while a layer is repeated.

    .. math:: \frac{\|\mathrm{HC}[f^t(X)]\|_F}{\|\mathrm{DC}[f^t(X)]\|_F}, \qquad t = 0, \dots, T

    A layer is a low-pass filter if this tends to 0 for all X. No linear map does so for all: tokens
    of zeros have no ratio, so read the definition for almost all X. `num_low` counts the lowest
    frequencies (AGF's c).

    Shapes: X (..., n, d) -> (steps + 1, ...).

    Source: definition 1 of https://arxiv.org/abs/2203.05962, definition 2.1 of
    https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    >>> trace_hfc_lfc(lambda x: A @ x, torch.tensor([[1.0], [3.0]]), steps=2)
    tensor([0.5000, 0.2500, 0.1250])
    """
    check_callables("theory.trace_hfc_lfc", layer=layer)
    check_sizes("theory.trace_hfc_lfc", steps=steps)
    ratios = [hfc_lfc(X, num_low=num_low)]
    for _ in range(steps):
        X = layer(X)
        ratios.append(hfc_lfc(X, num_low=num_low))
    return torch.stack(ratios)


def compute_stationary_distribution(A: Tensor) -> Tensor:
    r"""Compute the stationary distribution of a map, read as a Markov chain over tokens.

    .. math:: \pi^\top A = \pi^\top, \qquad \pi^\top 1 = 1, \qquad A^t \to 1 \pi^\top

    Shapes: (..., n, n) -> (..., n). Raises a linear algebra error where the chain has more than
    one, as an identity map has.

    Source: remark D.1 of https://arxiv.org/abs/2203.05962

    >>> compute_stationary_distribution(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor([0.3333, 0.6667])
    """
    check_tensors("theory.compute_stationary_distribution", 2, A=A)
    n = A.shape[-1]
    # pi^T (I - A + 1 1^T) = 1^T
    system = torch.eye(n, dtype=A.dtype, device=A.device) - A + 1
    return torch.linalg.solve(system.mT, A.new_ones(*A.shape[:-2], n))


@dataclass(frozen=True)
class LowPassDecay:
    """Theorem 1 on given tokens: what it measures, and what it needs.

    `ratio` is HC over DC after the steps, `rate` the modulus of the second eigenvalue, by which HC
    shrinks a step, `stationary_mean` the norm of the limit of the tokens, and `assumed` is True for
    a positive map and a limit that is not zero.
    """

    ratio: Tensor
    rate: Tensor
    stationary_mean: Tensor
    assumed: Tensor


def measure_low_pass_decay(A: Tensor, X: Tensor, steps: int = 100) -> LowPassDecay:
    r"""Measure how a map, applied again and again, removes the high frequencies of tokens.

    .. math:: \lim_{t \to \infty} \frac{\|\mathrm{HC}[A^t X]\|_F}{\|\mathrm{DC}[A^t X]\|_F} = 0
        \quad\text{where}\quad \pi^\top X \ne 0

    The theorem is printed for all X. Where pi^T X = 0 the low frequency vanishes too: tokens
    (1, -1) of a symmetric 2 x 2 map have no DC at any step, and of other maps the ratio tends to
    that of the second eigenvector.

    Shapes: A (..., n, n), X (..., n, d) -> fields (...).

    Source: theorem 1 of https://arxiv.org/abs/2203.05962 and of https://arxiv.org/abs/2505.08516

    >>> A, x = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[1.0], [3.0]])
    >>> decay = measure_low_pass_decay(A, x, steps=2)
    >>> decay.ratio, decay.rate, decay.assumed
    (tensor(0.1250), tensor(0.5000), tensor(True))
    >>> measure_low_pass_decay(A, x - 2).assumed
    tensor(False)
    """
    check_tensors("theory.measure_low_pass_decay", 2, A=A, X=X)
    pi = compute_stationary_distribution(A)
    limit = (pi.unsqueeze(-2) @ X).flatten(-2).norm(dim=-1)
    moduli = torch.linalg.eigvals(A).abs().sort(-1, descending=True).values
    scale = X.flatten(-2).norm(dim=-1)
    return LowPassDecay(
        ratio=trace_hfc_lfc(lambda x: A @ x, X, steps)[-1],
        rate=moduli[..., 1] if A.shape[-1] > 1 else torch.zeros_like(moduli[..., 0]),
        stationary_mean=limit,
        assumed=(A > 0).all(-1).all(-1) & (limit > 1e2 * torch.finfo(A.dtype).eps * scale),
    )


def compute_dobrushin_coefficient(A: Tensor) -> Tensor:
    r"""Compute the largest distance of two rows of a map: the mixing rate of the Markov chain.

    .. math:: \delta(A) = \tfrac{1}{2} \max_{i, j} \|a_i - a_j\|_1

    A map shrinks the range of a channel over tokens, maximum less minimum, to this share at most.

    Shapes: (..., n, n) -> (...).

    Source: R. Dobrushin 1956; the mixing rate of remark D.1 of https://arxiv.org/abs/2203.05962

    >>> compute_dobrushin_coefficient(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor(0.2500)
    """
    check_tensors("theory.compute_dobrushin_coefficient", 2, A=A)
    return torch.cdist(A, A, p=1).amax((-2, -1)) / 2


def bound_stationary_distance(A: Tensor) -> Bound:
    r"""Bound the distance of the rows of a map to its stationary distribution, after one step.

    .. math:: \|a_i^\top A - \pi^\top\|_1 \le \delta(A)\, \|a_i - \pi\|_1

    The remark names no norm. In the norm of l1 its rate below 1 is the Dobrushin coefficient; in
    the Euclidean norm there is none: a distance may grow in a step, by 1.25 in a draw of 4 tokens.

    Shapes: (..., n, n) -> bound of (..., n), one for each row.

    Source: remark D.1 of https://arxiv.org/abs/2203.05962

    >>> bound_stationary_distance(torch.tensor([[0.5, 0.5], [0.25, 0.75]])).ratio
    tensor([1.0000, 1.0000])
    """
    pi = compute_stationary_distribution(A).unsqueeze(-2)
    upper = compute_dobrushin_coefficient(A).unsqueeze(-1) * (A - pi).abs().sum(-1)
    return Bound((A @ A - pi).abs().sum(-1), upper)


def bound_mixing(P: Tensor) -> Bound:
    r"""Bound the mixing rate of a softmax map by its logits.

    .. math:: \delta(\mathrm{softmax}(P)) \le 1 - \frac{n}{1 + (n - 1) e^{2 \alpha}} < 1

    Shapes: (..., n, n) -> bound of (...).

    Source: eq. 47 of https://arxiv.org/abs/2203.05962, for the smallest entry in place of the
    largest

    >>> bound_mixing(torch.zeros(2, 2))
    Bound(measured=tensor(0.), upper=tensor(0.), lower=0.0)
    """
    check_tensors("theory.bound_mixing", 2, P=P)
    n = P.shape[-1]
    upper = 1 - n / (1 + (n - 1) * (2 * measure_alpha(P)).exp())
    return Bound(compute_dobrushin_coefficient(P.softmax(-1)), upper)


def bound_product_mixing(maps: Tensor) -> Bound:
    r"""Bound the mixing rate of a product of maps, as of layers that each have their own.

    .. math:: \delta(A_L \cdots A_1) \le \prod_k \delta(A_k)

    The corollary says that the product is a low-pass filter, which it is as one map that is
    repeated (see `measure_low_pass_decay`). Its reading for depth, that ever more layers smooth,
    needs more: the product of the bounds must tend to 0, as it does for logits below a common
    bound. Layers whose logits grow by 1 from layer to layer stay far from it.

    Shapes: (..., L, n, n), the first layer first -> bound of (...).

    Source: corollary 2 of https://arxiv.org/abs/2203.05962

    >>> bound_product_mixing(torch.tensor([[0.75, 0.25], [0.25, 0.75]]).expand(3, 2, 2))
    Bound(measured=tensor(0.1250), upper=tensor(0.1250), lower=0.0)
    """
    check_tensors("theory.bound_product_mixing", 3, maps=maps)
    first, *others = maps.unbind(-3)
    for A in others:
        first = A @ first
    upper = compute_dobrushin_coefficient(maps).prod(-1)
    return Bound(compute_dobrushin_coefficient(first), upper)


def bound_distance_to_constant(X: Tensor, z: Tensor) -> Bound:
    r"""Compare the high frequencies of tokens with their distance to any constant tokens.

    .. math:: \|\mathrm{HC}[X]\|_F \le \|X - 1 z^\top\|_F

    Shapes: X (..., n, d), z (..., d) -> bound of (...).

    Source: lemma 7 of https://arxiv.org/abs/2203.05962

    >>> bound_distance_to_constant(torch.tensor([[0.0], [6.0], [6.0], [0.0]]), torch.zeros(1)).upper
    tensor(8.4853)
    """
    check_tensors("theory.bound_distance_to_constant", 2, X=X)
    return Bound(high_frequency_norm(X), (X - z.unsqueeze(-2)).flatten(-2).norm(dim=-1))


def fit_low_pass_part(A: Tensor) -> Tensor:
    r"""Fit the multiple of the uniform map that is nearest to a map: 1 for a softmax map.

    .. math:: \beta^* = \arg\min_\beta \|A - \tfrac{\beta}{n} 1 1^\top\|_F
        = \tfrac{1}{n} \sum_{ij} A_{ij}

    A fully masked row of zeros lowers it by 1/n.

    Shapes: (..., n, n) -> (...).

    Source: lemma 8 of https://arxiv.org/abs/2203.05962

    >>> fit_low_pass_part(torch.eye(3))
    tensor(1.)
    """
    check_tensors("theory.fit_low_pass_part", 2, A=A)
    return A.sum((-2, -1)) / A.shape[-1]


def bound_rank_one_product(
    D: Tensor, r: Tensor, R: Tensor, W_V: Tensor, printed: bool = False
) -> Bound:
    r"""Bound the product in a proof of Dong et al. that the remark refutes.

    .. math:: \|D 1\, \mathrm{softmax}(r)^\top R W_V\|_1
        \le \|D 1\|_1\, \max_j \mathrm{softmax}(r)_j\, \|R\|_1 \|W_V\|_1

    `printed` returns their bound, with the largest entry of D 1 in place of the first two factors.
    It is 3 where the product has norm 4: this norm takes column sums, over all rows of D.

    Shapes: D (n, n) diagonal, r (m,), R (m, d), W_V (d, D) -> bound of ().

    Source: remark D.2 of https://arxiv.org/abs/2203.05962, on eq. 12 of
    https://arxiv.org/abs/2103.03404v1

    >>> D, eye = torch.diag(torch.tensor([2.0, 3.0])), torch.eye(2)
    >>> r = torch.tensor([0.8, 0.2]).log()
    >>> bound_rank_one_product(D, r, eye, eye, printed=True)
    Bound(measured=tensor(4.), upper=tensor(3.), lower=0.0)
    >>> bound_rank_one_product(D, r, eye, eye).upper
    tensor(4.)
    """
    check_tensors("theory.bound_rank_one_product", 2, D=D, R=R, W_V=W_V)
    sums, weights = D.sum(-1), r.softmax(-1)
    product = sums.unsqueeze(-1) * (weights @ R @ W_V)
    norms = torch.linalg.matrix_norm(R, 1) * torch.linalg.matrix_norm(W_V, 1)
    upper = sums.abs().amax() if printed else sums.abs().sum() * weights.amax()
    return Bound(torch.linalg.matrix_norm(product, 1), upper * norms)


def build_fourier_matrix(n: int, printed: bool = False) -> Tensor:
    r"""Build the matrix of the discrete Fourier transform of n tokens.

    .. math:: F_{kl} = e^{-2 \pi i k l / n} / \sqrt n, \qquad F^{-1} = \bar F^\top

    Three texts print the exponent without 1/n, so that every entry is 1 / sqrt(n) and F has rank
    one (`printed`). AttnScale also prints F^{-1} = F. Their operators DC and HC are those of F.

    Shapes: -> (n, n), complex.

    Source: section 2 of https://arxiv.org/abs/2203.05962 and of https://arxiv.org/abs/2401.04301v2,
    section 3.1 of https://arxiv.org/abs/2505.08516

    >>> torch.linalg.matrix_rank(build_fourier_matrix(5)).item()
    5
    >>> torch.linalg.matrix_rank(build_fourier_matrix(5, printed=True)).item()
    1
    """
    check_sizes("theory.build_fourier_matrix", n=n)
    k = torch.arange(n, dtype=torch.float64)
    turns = torch.outer(k, k) / (1 if printed else n)
    return torch.polar(torch.full_like(turns, n**-0.5), -2 * torch.pi * (turns % 1))
