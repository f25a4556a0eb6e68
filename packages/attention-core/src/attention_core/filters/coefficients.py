"""The learned coefficients of a filter: one number a head, 1-D so that none is decayed."""

import torch
from torch import Tensor, nn


def head_coefficient(num_heads: int, value: float, learn: bool = True) -> nn.Parameter:
    """Create one float32 coefficient a head, shape (heads,), all equal to `value`."""
    return nn.Parameter(torch.full((num_heads,), float(value)), requires_grad=learn)


def per_head(w: Tensor, v: Tensor) -> Tensor:
    """Reshape weights (H,) to (H, 1, 1), in the dtype of the values (..., H, N, D)."""
    if v.ndim < 3 or v.shape[-3] != w.numel():
        raise ValueError(f"a filter of {w.numel()} heads got values of shape {tuple(v.shape)}")
    return w.to(v.dtype).view(-1, 1, 1)
