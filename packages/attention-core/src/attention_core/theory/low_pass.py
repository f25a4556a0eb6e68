"""Repeated attention as a low-pass filter (Wang et al. 2022; theorem 1 of AGF).

Shapes: A (..., n, n) is row-stochastic, X (..., n, d) are tokens. DC is the mean over tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.spectral import hfc_lfc
from attention_core.theory.bound import Bound


def trace_hfc_lfc(layer: Callable[[Tensor], Tensor], X: Tensor, steps: int) -> Tensor:
    r"""Compute the ratio of high to low frequencies of tokens while a layer is repeated.

    .. math:: \frac{\|\mathrm{HC}[f^t(X)]\|_F}{\|\mathrm{DC}[f^t(X)]\|_F}, \qquad t = 0, \dots, T

    A layer is a low-pass filter if this tends to 0 for almost all X.

    Shapes: X (..., n, d) -> (steps + 1, ...).

    Source: definition 1 of https://arxiv.org/abs/2203.05962, definition 2.1 of
    https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    >>> trace_hfc_lfc(lambda x: A @ x, torch.tensor([[1.0], [3.0]]), steps=2)
    tensor([0.5000, 0.2500, 0.1250])
    """
    ratios = [hfc_lfc(X)]
    for _ in range(steps):
        X = layer(X)
        ratios.append(hfc_lfc(X))
    return torch.stack(ratios)


class LowPassDecay(NamedTuple):
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

    The theorem is printed for all X. Where pi^T X = 0 the low frequency vanishes too.

    Shapes: A (..., n, n), X (..., n, d) -> fields (...).

    Source: theorem 1 of https://arxiv.org/abs/2203.05962 and of https://arxiv.org/abs/2505.08516

    >>> A, x = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[1.0], [3.0]])
    >>> decay = measure_low_pass_decay(A, x, steps=2)
    >>> decay.ratio, decay.rate, decay.assumed
    (tensor(0.1250), tensor(0.5000), tensor(True))
    >>> measure_low_pass_decay(A, x - 2).assumed
    tensor(False)
    """
    # the limit of the rows of A^t: pi^T (I - A + 1 1^T) = 1^T
    system = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) - A + 1
    pi = torch.linalg.solve(system.mT, A.new_ones(A.shape[:-1]))  # (..., n)
    limit = (pi.unsqueeze(-2) @ X).flatten(-2).norm(dim=-1)
    moduli = torch.linalg.eigvals(A).abs().sort(-1, descending=True).values
    scale = X.flatten(-2).norm(dim=-1)
    return LowPassDecay(
        ratio=trace_hfc_lfc(lambda x: A @ x, X, steps)[-1],
        rate=moduli[..., 1] if A.shape[-1] > 1 else torch.zeros_like(moduli[..., 0]),
        stationary_mean=limit,
        assumed=(A > 0).all(-1).all(-1) & (limit > 1e2 * torch.finfo(A.dtype).eps * scale),
    )


def _compute_dobrushin(A: Tensor) -> Tensor:
    """Return half the largest distance of two rows in l1 (Dobrushin 1956): the mixing rate."""
    return torch.cdist(A, A, p=1).amax((-2, -1)) / 2


def bound_product_mixing(maps: Tensor) -> Bound:
    r"""Bound the mixing rate of a product of maps, as of layers that each have their own.

    .. math:: \delta(A_L \cdots A_1) \le \prod_k \delta(A_k)

    A map shrinks the range of a channel over tokens, maximum less minimum, to delta at most. Ever
    more layers smooth if the product tends to 0, as it does for logits below a common bound.

    Shapes: (..., L, n, n), the first layer first -> bound of (...).

    Source: corollary 2 of https://arxiv.org/abs/2203.05962

    >>> bound_product_mixing(torch.tensor([[0.75, 0.25], [0.25, 0.75]]).expand(3, 2, 2))
    Bound(measured=tensor(0.1250), upper=tensor(0.1250), lower=0.0)
    """
    first, *others = maps.unbind(-3)
    for A in others:
        first = A @ first
    return Bound(_compute_dobrushin(first), _compute_dobrushin(maps).prod(-1))
