"""The learned coefficients of a filter: one number a head, 1-D so that none is decayed."""

import torch
from torch import Tensor, nn


def head_coefficient(num_heads: int, value: float, learn: bool = True) -> Tensor:
    """Create a float32 coefficient a head, (heads,), of `value`: a buffer if it is not learned."""
    w = torch.full((num_heads,), float(value))
    return nn.Parameter(w) if learn else nn.Buffer(w)


def per_head(w: Tensor, v: Tensor) -> Tensor:
    """Reshape weights (H,) to (H, 1, 1), in the dtype of the values (..., H, N, D)."""
    if v.ndim < 3 or v.shape[-3] != w.numel():
        raise ValueError(f"a filter of {w.numel()} heads got values of shape {tuple(v.shape)}")
    return w.to(v.dtype).view(-1, 1, 1)
