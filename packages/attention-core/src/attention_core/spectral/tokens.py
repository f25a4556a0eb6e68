"""Spectral measures of tokens over depth: pure functions of tensors.

Shapes: x (..., N, D) are tokens; mask (..., N) is True for valid tokens. Results keep the leading
axes (batch, heads), so that the caller chooses what to average. DC is the mean over tokens, the
lowest frequency of the DFT, and HC = x - DC.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_tensors
from attention_core.operators import masked_mean

_BLOCK = 128  # tokens


def prepare_tokens(function: str, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (..., N, D) in single precision at least; refuse a mask that is not theirs."""
    check_tensors(f"spectral.{function}", 2, x=x)
    if mask is not None:
        check_tensors(f"spectral.{function}", 1, mask=mask)
        if mask.shape[-1] != x.shape[-2] or mask.dtype != torch.bool:
            raise ValueError(
                f"spectral.{function} takes a boolean mask (..., {x.shape[-2]}) of its tokens, got "
                f"the shape {tuple(mask.shape)} of {mask.dtype}"
            )
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _norm_frequencies(function: str, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the norms of the parts of high and of low frequency, (...), without padding."""
    x = prepare_tokens(function, x, mask)
    x = x if mask is None else x.where(mask.unsqueeze(-1), 0.0)  # padding may be NaN
    low = masked_mean(x, None if mask is None else mask.unsqueeze(-2)).expand_as(x)
    parts = [x - low, low] if mask is None else [t * mask.unsqueeze(-1) for t in (x - low, low)]
    high, low = (t.flatten(-2).norm(dim=-1) for t in parts)
    return high, low


def hfc_lfc(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the ratio of the high to the low frequencies of tokens; 0 is fully smoothed.

    .. math:: \|\mathrm{HC}[x]\|_F / \|\mathrm{DC}[x]\|_F

    Shapes: (..., N, D) -> (...).

    Source: eq. 5 of https://arxiv.org/abs/2203.05962, figures 2-4 of
    https://arxiv.org/abs/2401.04301

    >>> hfc_lfc(torch.tensor([[1.0], [3.0]]))
    tensor(0.5000)
    """
    hc, dc = _norm_frequencies("hfc_lfc", x, mask)
    return hc / dc


def hfc_share(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the share of high frequencies in tokens, from 0 (all equal) to 1 (mean zero).

    .. math:: \|\mathrm{HC}[x]\|_F / \|x\|_F

    Shapes: (..., N, D) -> (...).

    Source: appendix G.3 (figure 11) of https://arxiv.org/abs/2203.05962

    >>> hfc_share(torch.tensor([[-1.0], [1.0]]))
    tensor(1.)
    """
    hc, dc = _norm_frequencies("hfc_share", x, mask)
    return hc / torch.hypot(hc, dc)


def high_frequency_norm(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the norm of the high frequencies of tokens; 0 is fully smoothed.

    .. math:: \|\mathrm{HC}[x]\|_F, \qquad \mathrm{HC}[x] = x - \tfrac{1}{n} 1 1^\top x

    Shapes: (..., N, D) -> (...).

    Source: figure 1 of https://arxiv.org/abs/2203.05962

    >>> high_frequency_norm(torch.tensor([[0.0], [6.0], [6.0], [0.0]]))
    tensor(6.)
    """
    return _norm_frequencies("high_frequency_norm", x, mask)[0]


def token_cosine(x: Tensor, mask: Tensor | None = None, signed: bool = False) -> Tensor:
    r"""Compute the mean cosine of pairs of tokens; 1 is fully smoothed.

    .. math:: \frac{2}{n (n - 1)} \sum_{i < j} |\cos(x_i, x_j)|

    With `signed`, the cosine has no absolute value, as ContraNorm measures it.

    Shapes: (..., N, D) -> (...).

    Source: eq. 76 of https://arxiv.org/abs/2203.05962; https://arxiv.org/abs/2303.06562

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    >>> token_cosine(x), token_cosine(x, signed=True)
    (tensor(0.3333), tensor(-0.3333))
    """
    x = prepare_tokens("token_cosine", x, mask)
    unit, count = F.normalize(x, dim=-1), torch.tensor(x.shape[-2], device=x.device)
    if mask is not None:
        unit, count = unit.where(mask.unsqueeze(-1), 0.0), mask.sum(-1)
    own = unit.square().sum((-2, -1))
    if signed:
        both = unit.sum(-2).square().sum(-1)
    else:  # in blocks that a cache holds, as images have many tokens
        blocks = torch.split(unit, _BLOCK, -2)
        sums = [torch.linalg.vector_norm(rows @ unit.mT, 1, (-2, -1)) for rows in blocks]
        both = torch.stack(sums).sum(0)
    return (both - own) / (count * (count - 1)).clamp(min=1)


def effective_rank(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the number of directions that tokens use: the exponential of an entropy.

    .. math:: \exp\Big(-\sum_i p_i \log p_i\Big), \qquad p_i = \sigma_i / \sum_j \sigma_j

    Shapes: (..., N, D) -> (...), between 1 and min(N, D).

    Source: Roy and Vetterli 2007, as used by https://arxiv.org/abs/2303.06562

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    """
    x = prepare_tokens("effective_rank", x, mask)
    if mask is not None:
        x = x.where(mask.unsqueeze(-1), 0.0)  # rows of zeros do not change the singular values
    return count_directions(torch.linalg.svdvals(x))


def count_directions(sigma: Tensor) -> Tensor:
    """Return the effective rank (...) of singular values (..., r)."""
    return torch.special.entr(sigma / sigma.sum(-1, keepdim=True)).sum(-1).exp()
