"""What kernels share: the mask of their keys, and what they do behind the filter."""

from typing import Any

from torch import Tensor

from attention_core.operators import support


def key_mask(mask: Tensor | None) -> Tensor | None:
    """A mask of keys as (B, 1, 1, N) boolean, True where a token is real.

    Shapes: mask (B, N) boolean, or boolean or additive with the axes of (B, H, N, N).

    Raises ValueError for a mask that depends on the query: all kernels are bidirectional.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

    >>> import torch
    >>> key_mask(torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 1, 1, 5])
    """
    if mask is None:
        return None
    keep = support(mask if mask.ndim > 2 else mask[:, None, None, :])
    if keep.shape[-2] != 1:
        raise ValueError(
            "a kernel is bidirectional: its mask may depend on keys alone, not on queries"
        )
    return keep


def readout(kernel: Any, z: Tensor) -> Tensor:
    """What a kernel does with filtered values that is no part of its map: nothing for most.

    YOSO scales each row to length 1, which is not linear in v and so comes behind the filter.

    Shapes: z (B, H, N, d) -> (B, H, N, d).

    Source: https://arxiv.org/abs/2111.09714

    >>> import torch
    >>> readout(None, torch.ones(1)).tolist()
    [1.0]
    """
    return kernel.readout(z) if hasattr(kernel, "readout") else z
