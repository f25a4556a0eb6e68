"""Bounds on the growth of the high frequencies in one attention layer, and the weights' spectrum.

Shapes: A and H (..., N, N) are maps; mask (..., N) is True for valid tokens.
"""

import torch
from torch import Tensor, nn

from attention_core.checks import check_sizes, check_tensors
from attention_core.spectral.heads import SMALLEST_WEIGHT
from attention_core.spectral.maps import restrict_map
from attention_core.spectral.tokens import prepare_tokens


def logit_range(A: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the smallest alpha of theorem 3 that logits of a softmax map may have.

    .. math:: \alpha = \min_{P: \mathrm{softmax}(P) = A} \max_{ij} |P_{ij}|
        = \frac{1}{2} \max_i \, \big(\max_j \log A_{ij} - \min_j \log A_{ij}\big)

    A softmax ignores what is added to a row of its logits. The result is infinite for a map with an
    entry of 0 (a causal one) or below.

    Shapes: A (..., N, N), mask (..., N), of heads `mask[:, None]`, -> (...).

    Source: theorem 3 of https://arxiv.org/abs/2203.05962

    >>> logit_range(torch.tensor([[3.0, 1.0], [7.0, 2.0]]).softmax(-1))
    tensor(2.5000)
    """
    A = prepare_tokens("logit_range", A, mask)
    logits = A.where(A >= SMALLEST_WEIGHT, 0.0).log()
    low, high = logits.amin(-1), logits.amax(-1)
    if mask is not None:
        low = logits.masked_fill(~mask.unsqueeze(-2), torch.inf).amin(-1)
        high = logits.masked_fill(~mask.unsqueeze(-2), -torch.inf).amax(-1)
        low, high = low.where(mask, 0.0), high.where(mask, 0.0)
    return (high - low).amax(-1).div(2).nan_to_num(torch.inf, posinf=torch.inf)


def smoothing_rate(alpha: Tensor, num_tokens: int | Tensor) -> Tensor:
    r"""Compute the factor of theorem 3 that bounds the high frequencies after a softmax map.

    .. math:: \|\mathrm{HC}[A x]\|_F \le \sqrt{\frac{n e^{2 \alpha}}{e^{2 \alpha} + n - 1}} \,
        \|\mathrm{HC}[x]\|_F, \qquad \alpha \ge \max_{ij} |P_{ij}|, \quad A = \mathrm{softmax}(P)

    It lies between 1 and the square root of n.

    Shapes: alpha (...) -> (...).

    Source: eq. 6 of https://arxiv.org/abs/2203.05962

    >>> smoothing_rate(torch.tensor([0.0, 100.0]), 4)
    tensor([1., 2.])
    """
    check_tensors("spectral.smoothing_rate", 0, alpha=alpha)
    if not isinstance(num_tokens, Tensor):
        check_sizes("spectral.smoothing_rate", num_tokens=num_tokens)
    return (num_tokens / (1 + (num_tokens - 1) * (-2 * alpha).exp())).sqrt()


def map_smoothing_rate(H: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the largest growth of high frequencies under a map whose rows have one sum.

    .. math:: \|(I - J) H\|_2 = \max_x \frac{\|\mathrm{HC}[H x]\|_F}{\|\mathrm{HC}[x]\|_F}

    It is the sharpest factor that theorem 3 could have, and holds for causal maps and for filters
    of them.

    Shapes: H (..., N, N), mask (..., N), of heads `mask[:, None]`, -> (...).

    Source: the proof of theorem 3 of https://arxiv.org/abs/2203.05962, before its last step

    >>> map_smoothing_rate(torch.tensor([[0.9, 0.1], [0.3, 0.7]]))
    tensor(0.6000)
    """
    H = prepare_tokens("map_smoothing_rate", H, mask)
    if mask is not None:
        H = restrict_map(H, mask)
        count = mask.sum(-1)[..., None, None].clamp(min=1)
        high = H - mask.unsqueeze(-1) * (H.sum(-2, keepdim=True) / count)
    else:
        high = H - H.mean(-2, keepdim=True)
    return torch.linalg.matrix_norm(high, 2)


def value_output_eigenvalues(value: Tensor, output: Tensor, num_heads: int) -> Tensor:
    r"""Compute the eigenvalues of each head's map of features, with one of its D - d zeros.

    .. math:: H_g = (W_V^g W_O^g)^\top

    The others are those of the product in the other order, which has d rows.

    Shapes: value (H d, D), output (D, H d), as the weights of Linears -> (H, d + 1), or (H, D)
    where d = D.

    Source: definition 3.2 of https://arxiv.org/abs/2401.04301v2

    >>> output = torch.diag(torch.tensor([3.0, 5.0]))
    >>> value_output_eigenvalues(torch.eye(2), output, num_heads=2).real.tolist()
    [[3.0, 0.0], [5.0, 0.0]]
    """
    V = value.double().reshape(num_heads, -1, value.shape[1])  # (H, d, D)
    W = output.double().reshape(len(output), num_heads, -1).movedim(1, 0)  # (H, D, d)
    found = torch.linalg.eigvals(V @ W)
    return found if found.shape[-1] == value.shape[-1] else nn.functional.pad(found, (0, 1))


def condition_number(W: Tensor) -> Tensor:
    r"""Compute the condition number of a matrix, infinite for a singular one.

    .. math:: \kappa(W) = \sigma_1 / \sigma_D

    Shapes: (..., D, D) -> (...); half precision is computed in float32.

    Source: figure 7 of https://arxiv.org/abs/2401.04301v2

    >>> condition_number(torch.diag(torch.tensor([4.0, 0.5])))
    tensor(8.)
    """
    W = prepare_tokens("condition_number", W, None)
    sigma = torch.linalg.svdvals(W)
    smallest = sigma[..., -1]
    rounding = sigma[..., 0] * W.shape[-1] * torch.finfo(W.dtype).eps
    return (sigma[..., 0] / smallest).where(smallest > rounding, torch.inf)
