"""The learned weights of a filter: one number a head, 1-D, so that no optimiser decays them."""

import torch
from torch import Tensor, nn


def coefficient(num_heads: int, value: float, learn: bool = True) -> nn.Parameter:
    """One weight a head, shape (heads,), float32, starting at `value`.

    Raises ValueError for fewer than one head.

    Source: Choi et al. 2024, appendix C, https://arxiv.org/abs/2312.04234

    >>> coefficient(2, 1.0).shape
    torch.Size([2])
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    return nn.Parameter(torch.full((num_heads,), float(value)), requires_grad=learn)


def per_head(w: Tensor, v: Tensor) -> Tensor:
    """Lay weights (H,) over values (..., H, N, D), in the values' dtype.

    Raises ValueError where v has another number of heads.

    Source: Choi et al. 2024, appendix C, https://arxiv.org/abs/2312.04234

    >>> per_head(torch.ones(3), torch.zeros(2, 3, 5, 4)).shape
    torch.Size([3, 1, 1])
    """
    if v.shape[-3] != w.numel():
        raise ValueError(f"a filter of {w.numel()} heads got values of {v.shape[-3]} heads")
    return w.to(v.dtype).view(-1, 1, 1)
