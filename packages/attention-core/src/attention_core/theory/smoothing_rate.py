"""Bounds on the high frequencies that a layer leaves (Wang et al. 2022).

Shapes: P (..., n, n) are the logits of an attention map A = softmax(P), X (..., n, d) tokens. With
heads, P is (..., H, n, n), W_V (H, d, D) and W_O (H, D, d). HC[X] is X less the mean of its tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.spectral import high_frequency_norm, map_smoothing_rate, smoothing_rate
from attention_core.theory.bound import Bound


def bound_attention_smoothing(P: Tensor, W_V: Tensor, X: Tensor) -> Bound:
    r"""Bound the high frequencies of the output of an attention head.

    .. math:: \|\mathrm{HC}[\mathrm{SA}(X)]\|_F \le
        \sqrt{\frac{n e^{2 \alpha}}{e^{2 \alpha} + n - 1}}\, \|W_V\|_2\, \|\mathrm{HC}[X]\|_F,
        \qquad \mathrm{SA}(X) = \mathrm{softmax}(P) X W_V, \quad \alpha = \max_{ij} |P_{ij}|

    The factor is `spectral.smoothing_rate`; `spectral.map_smoothing_rate` is the tight one.

    Shapes: P (..., n, n), W_V (d, D), X (..., n, d) -> bound of (...).

    Source: theorem 3 of https://arxiv.org/abs/2203.05962

    >>> x = torch.tensor([[0.0], [2.0]])
    >>> bound = bound_attention_smoothing(torch.zeros(2, 2), torch.eye(1), x)
    >>> bound.measured, bound.upper, bound.holds
    (tensor(0.), tensor(1.4142), tensor(True))
    """
    factor = smoothing_rate(P.abs().amax((-2, -1)), P.shape[-1])
    upper = factor * torch.linalg.matrix_norm(W_V, 2) * high_frequency_norm(X)
    return Bound(high_frequency_norm(P.softmax(-1) @ X @ W_V), upper)


def bound_logits(X: Tensor, W_Q: Tensor, W_K: Tensor) -> Bound:
    r"""Bound the logits of dot-product attention on tokens in a ball.

    .. math:: \alpha \le \gamma^2 \|W_Q W_K^\top\|_2 / \sqrt d, \qquad \|x_i\|_2 \le \gamma

    Shapes: X (..., n, d), W_Q, W_K (d, D), whose D is the d of the root -> bound of (...).

    Source: theorem 3 of https://arxiv.org/abs/2203.05962

    >>> bound_logits(torch.tensor([[1.0], [-2.0]]), torch.eye(1), torch.eye(1)).upper
    tensor(4.)
    """
    scale = W_Q.shape[-1] ** 0.5
    radius = X.norm(dim=-1).amax(-1)
    upper = radius**2 * torch.linalg.matrix_norm(W_Q @ W_K.mT, 2) / scale
    return Bound(((X @ W_Q) @ (X @ W_K).mT / scale).abs().amax((-2, -1)), upper)


class DecayCondition(NamedTuple):
    """The factor of theorem 3, and the conditions that are said to keep it below 1."""

    factor: Tensor
    small_values: Tensor
    printed: Tensor
    corrected: Tensor


def check_decay(alpha: Tensor | float, W_V: Tensor, num_tokens: int) -> DecayCondition:
    r"""Compare the sufficient conditions for a decay of the high frequencies with the factor.

    .. math:: \|W_V\|_2 < 1 / \sqrt n, \qquad
        \alpha + \log \|W_V\|_2 \le \tfrac{1}{2} \log \tfrac{n - 1}{2} \ \text{(printed)}, \qquad
        \alpha + \log \|W_V\|_2 < 0 \ \text{(corrected)}

    The first and the last bring the factor below 1, as it is at most e^alpha times the norm. The
    printed one does not.

    Shapes: alpha any, W_V (d, D) -> booleans of the shape of alpha.

    Source: text after theorem 3 of https://arxiv.org/abs/2203.05962

    >>> decay = check_decay(0.0, 9.0 * torch.eye(1), 197)
    >>> decay.printed, decay.factor
    (tensor(True), tensor(9.))
    """
    alpha, norm = torch.as_tensor(alpha), torch.linalg.matrix_norm(W_V, 2)
    rate = alpha + norm.log()
    return DecayCondition(
        factor=smoothing_rate(alpha, num_tokens) * norm,
        small_values=(norm < num_tokens**-0.5).expand_as(alpha),
        printed=rate <= torch.tensor((num_tokens - 1) / 2).to(norm).log() / 2,
        corrected=rate < 0,
    )


def bound_multi_head_smoothing(P: Tensor, W_V: Tensor, W_O: Tensor, X: Tensor) -> Bound:
    r"""Bound the high frequencies of the output of multi-head attention.

    .. math:: \|\mathrm{HC}[\mathrm{MSA}(X)]\|_F \le \sigma_1 \sigma_2 H
        \sqrt{\frac{n e^{2 \alpha}}{e^{2 \alpha} + n - 1}}\, \|\mathrm{HC}[X]\|_F, \qquad
        \sigma_1 = \max_h \|W_V^h\|_2, \quad \sigma_2 = \max_h \|W_O^h\|_2

    Shapes: P (..., H, n, n), W_V (H, d, D), W_O (H, D, d), X (..., n, d) -> bound of (...).

    Source: proposition 4 of https://arxiv.org/abs/2203.05962

    >>> P, W = torch.zeros(3, 2, 2), torch.ones(3, 1, 1)
    >>> bound_multi_head_smoothing(P, W, W, torch.tensor([[-1.0], [1.0]])).upper
    tensor(4.2426)
    """
    upper = _factor_heads(P, W_V, W_O) * high_frequency_norm(X)
    return Bound(high_frequency_norm(_attend(P, W_V, W_O, X)), upper)


def bound_residual_smoothing(P: Tensor, W_V: Tensor, W_O: Tensor, X: Tensor) -> Bound:
    r"""Bound the high frequencies of tokens plus their attention, from both sides.

    .. math:: \max(0, 1 - c)\, \|\mathrm{HC}[X]\|_F \le
        \|\mathrm{HC}[X + \mathrm{MSA}(X)]\|_F \le
        \Big(1 + \sigma_1 \sigma_2 H \sqrt{\tfrac{n e^{2 \alpha}}{e^{2 \alpha} + n - 1}}\Big)
        \|\mathrm{HC}[X]\|_F, \qquad
        c = \sum_h \|(I - J) A^h (I - J)\|_2\, \|W_V^h W_O^h\|_2

    The upper bound is the proposition. The lower one, which is not in the paper, keeps high
    frequencies where c < 1.

    Shapes: as in `bound_multi_head_smoothing`.

    Source: proposition 5 of https://arxiv.org/abs/2203.05962

    >>> x, W = torch.tensor([[-1.0], [1.0]]), torch.ones(1, 1, 1)
    >>> bound = bound_residual_smoothing(100 * torch.eye(2)[None], -W, W, x)
    >>> bound.measured < 1e-6, bound.upper
    (tensor(True), tensor(3.4142))
    """
    norm = high_frequency_norm(X)
    contraction = map_smoothing_rate(P.softmax(-1)) * torch.linalg.matrix_norm(W_V @ W_O, 2)
    lower = (1 - contraction.sum(-1)).clamp(min=0) * norm
    upper = (1 + _factor_heads(P, W_V, W_O)) * norm
    return Bound(high_frequency_norm(X + _attend(P, W_V, W_O, X)), upper, lower)


def bound_block_smoothing(
    P: Tensor,
    W_V: Tensor,
    W_O: Tensor,
    X: Tensor,
    feed_forward: Callable[[Tensor], Tensor],
    lipschitz: float,
    residual: bool = False,
) -> Bound:
    r"""Bound the high frequencies of the output of a block without norms.

    .. math:: \|\mathrm{HC}[\mathrm{FFN}(X')]\|_F \le \sigma_3
        \Big(1 + \sigma_1 \sigma_2 H \sqrt{\tfrac{n e^{2 \alpha}}{e^{2 \alpha} + n - 1}}\Big)
        \|\mathrm{HC}[X]\|_F, \qquad X' = X + \mathrm{MSA}(X)

    with sigma_3 the Lipschitz constant of `feed_forward`, which acts on each token, and 1 more
    with a `residual` around it.

    Shapes: as in `bound_multi_head_smoothing`; feed_forward (..., n, d) -> (..., n, d).

    Source: proposition 6 of https://arxiv.org/abs/2203.05962

    >>> P, W, x = torch.zeros(1, 2, 2), torch.ones(1, 1, 1), torch.tensor([[-1.0], [1.0]])
    >>> bound = bound_block_smoothing(P, W, W, x, torch.relu, 1.0)
    >>> bound.measured, bound.upper
    (tensor(0.7071), tensor(2.8284))
    """
    before = bound_residual_smoothing(P, W_V, W_O, X)
    tokens = X + _attend(P, W_V, W_O, X)
    output = feed_forward(tokens) + tokens if residual else feed_forward(tokens)
    return Bound(high_frequency_norm(output), (lipschitz + residual) * before.upper)


def _attend(P: Tensor, W_V: Tensor, W_O: Tensor, X: Tensor) -> Tensor:
    return (P.softmax(-1) @ X.unsqueeze(-3) @ W_V @ W_O).sum(-3)


def _factor_heads(P: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    alpha = P.abs().amax((-3, -2, -1))
    sigmas = [torch.linalg.matrix_norm(W, 2).amax() for W in (W_V, W_O)]
    return sigmas[0] * sigmas[1] * P.shape[-3] * smoothing_rate(alpha, P.shape[-1])
