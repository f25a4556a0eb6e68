"""What kernels share: masks, precision, choices, and what they do behind the filter."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from attention_core.operators import support


def key_mask(mask: Tensor | None) -> Tensor | None:
    """A mask of keys as (B, 1, 1, N) boolean, True where a token is real.

    Shapes: mask (B, N) boolean, or boolean or additive with the axes of (B, H, N, N).

    Raises ValueError for a mask that depends on the query: all kernels are bidirectional.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

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

    >>> readout(None, torch.ones(1)).tolist()
    [1.0]
    """
    return kernel.readout(z) if hasattr(kernel, "readout") else z


def wide(t: Tensor) -> Tensor:
    """At least single precision: sums over many tokens do not fit into half.

    Source: https://docs.pytorch.org/docs/stable/amp.html (what autocast keeps in float32)

    >>> wide(torch.ones(1, dtype=torch.bfloat16)).dtype, wide(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return t.to(torch.promote_types(t.dtype, torch.float32))


def real(t: Tensor, keep: Tensor | None) -> Tensor:
    """The tokens that a mask names; zero elsewhere.

    Shapes: t (B, H, N, r), keep (B, 1, 1, N) boolean -> (B, H, N, r).

    Source: https://arxiv.org/abs/2006.16236 (a key that is zero adds nothing to a sum of keys)

    >>> real(torch.ones(1, 1, 2, 1), torch.tensor([[[[True, False]]]])).flatten()
    tensor([1., 0.])
    """
    return t if keep is None else t.masked_fill(~keep.mT, 0.0)


def exact(like: Tensor) -> AbstractContextManager[torch.autocast | None]:
    """A context without autocast: what is done inside keeps its own precision.

    Source: https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference

    >>> one = torch.ones(1, 1)
    >>> with torch.autocast("cpu", torch.bfloat16), exact(one):
    ...     (one @ one).dtype
    torch.float32
    """
    device = "cpu" if like.is_meta else like.device.type  # meta has no autocast
    # a compiler that meets no autocast need not know how to leave it
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


def choose(where: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError for a value that is not allowed, naming those that are.

    Source: https://docs.python.org/3/library/typing.html#typing.Literal (not checked at run time)

    >>> choose("AGF's rho", "relu", ("softmax", "none"))
    Traceback (most recent call last):
    ValueError: AGF's rho must be one of softmax, none, got 'relu'
    """
    if value not in (known := tuple(allowed)):
        raise ValueError(f"{where} must be one of {', '.join(known)}, got {value!r}")
