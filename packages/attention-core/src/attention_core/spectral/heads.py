"""Measures of attention heads: how spread their weights are, and how alike their maps.

Shapes: A (..., H, N, N) are maps of H heads; mask (..., N) is True for valid tokens.
"""

import torch
from torch import Tensor

from attention_core.checks import check_tensors
from attention_core.spectral.maps import restrict_map
from attention_core.spectral.tokens import token_cosine

# softmax gives less to forbidden keys, even where the mask adds only -100, as in Swin
SMALLEST_WEIGHT = torch.finfo(torch.float32).tiny


def attention_entropy(A: Tensor, mask: Tensor | None = None, relative: bool = False) -> Tensor:
    r"""Compute the entropy of the rows of each head's map, in nats, averaged over queries.

    .. math:: -\frac{1}{n} \sum_i \sum_j A_{ij} \log A_{ij}

    With `relative`, the entropy of a row is divided by the logarithm of its number of allowed keys,
    those with a weight; 1 is a uniform row. A row with one key alone is left out. A map with a
    negative entry has no entropy: NaN.

    Shapes: A (..., H, N, N) and a mask of valid tokens (..., N) -> (..., H).

    Source: `Zhai et al. 2023 <https://arxiv.org/abs/2303.06296>`_, section 3.1

    >>> A = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    >>> attention_entropy(A), attention_entropy(A, relative=True)
    (tensor([0.3466]), tensor([1.]))
    """
    check_tensors("spectral.attention_entropy", 3, A=A)
    A = A.to(torch.promote_types(A.dtype, torch.float32))
    queries = torch.ones_like(A[..., 0], dtype=torch.bool)
    if mask is not None:
        A = restrict_map(A, mask.unsqueeze(-2))
        queries = mask.unsqueeze(-2).expand(queries.shape)
    entropy = torch.special.entr(A).sum(-1)  # -inf for a negative entry
    if relative:
        num_keys = (A >= SMALLEST_WEIGHT).sum(-1)
        queries = queries & ((num_keys > 1) | (entropy < 0))
        entropy = entropy / num_keys.clamp(min=2).to(A.dtype).log()
    mean = entropy.where(queries, 0.0).sum(-1) / queries.sum(-1)
    return mean.where(mean.isfinite(), torch.nan)


def head_cosine(A: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the mean cosine between the maps of pairs of heads; 1 if all heads are alike.

    .. math:: \frac{2}{H (H - 1)} \sum_{g < h}
        \frac{\langle A^g, A^h \rangle_F}{\|A^g\|_F \|A^h\|_F}

    Shapes: A (..., H, N, N) for at least two heads, and a mask of valid tokens (..., N) -> (...).

    >>> head_cosine(torch.stack([torch.eye(2), torch.full((2, 2), 0.5)]))
    tensor(0.7071)
    """
    check_tensors("spectral.head_cosine", 3, A=A)
    if A.shape[-3] == 1:
        raise ValueError("spectral.head_cosine compares two heads or more, got a map of one")
    A = A if mask is None else restrict_map(A, mask.unsqueeze(-2))
    return token_cosine(A.flatten(-2), signed=True)
