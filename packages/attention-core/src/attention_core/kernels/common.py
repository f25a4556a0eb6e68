"""Helpers of all kernels: operands, precision, layers, and the step behind the filter."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.checks import check_heads
from attention_core.mechanism import Mechanism, find_allowed_tokens
from attention_core.operators import allowed_pairs, is_traced


class Kernel(Mechanism):
    """The base of all kernels: modules that form an operator from queries and keys, never causal.

    Shapes: q, k (B, H, N, d), x (B, N, D), which few use, mask (B, N) or (B, 1, 1, N), True where a
    token is valid; columns of padding are zero. By default rows are too, but not AGF's and not
    those of a Nystromformer of few tokens.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads(type(self).__name__, dim=dim, num_heads=num_heads)


def key_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return a mask of tokens or pairs as that of keys, (B, 1, 1, N) boolean, True if valid."""
    if q.ndim != 4 or q.shape != k.shape:
        raise ValueError(
            "a kernel takes queries and keys (batch, heads, tokens, width) of one shape, got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if mask is None:
        return None
    batch, n = k.shape[0], k.shape[-2]
    if mask.ndim not in (2, 4) or (mask.shape[0], mask.shape[-1]) not in ((batch, n), (1, n)):
        raise ValueError(
            f"a kernel takes a mask ({batch}, {n}) or ({batch}, 1, 1, {n}) of its keys, got "
            f"{tuple(mask.shape)}"
        )
    # no branch in a trace, nor on values that are not there
    is_known = type(mask) in (Tensor, nn.Parameter) and not (is_traced() or mask.is_meta)
    if is_known and mask.dtype != torch.bool and (allowed_pairs(mask) & (mask != 0)).any():
        raise ValueError("a kernel has no logits to add a bias to: a mask may only forbid, by -inf")
    if mask.ndim == 4 and mask.shape[-2] > 1:
        mask = find_allowed_tokens(mask, "a kernel")
    return allowed_pairs(mask if mask.ndim > 2 else mask[:, None, None, :])


def apply_kernel(
    kernel: Any, qk: tuple[Tensor, Tensor], x: Tensor | None, mask: Tensor | None, is_causal: bool
) -> Any:
    """Return the map that a kernel makes of queries, keys and tokens x (B, N, D)."""
    if is_causal:
        raise ValueError(f"{type(kernel).__name__} is bidirectional: it cannot be causal")
    return kernel(*qk, x, key_mask(mask, *qk))


def postprocess(kernel: Any, z: Tensor) -> Tensor:
    """Apply a kernel's step behind the filter to (B, H, N, d): YOSO's is not linear in v."""
    return kernel.postprocess(z) if hasattr(kernel, "postprocess") else z


def connect_layers(kernels: Iterable[Any]) -> None:
    """Connect the kernels of successive layers that share weights or scores across layers."""
    for before, kernel in pairwise(kernels):
        if hasattr(kernel, "follow_layer"):
            kernel.follow_layer(before)


def at_least_float32(t: Tensor) -> Tensor:
    """Convert half precision to single, in which sums over many tokens are accurate."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def zero_padding(t: Tensor, valid: Tensor | None) -> Tensor:
    """Set the rows t (B, H, N, r) of tokens that are not valid, (B, 1, 1, N), to zero."""
    return t if valid is None else t.masked_fill(~valid.mT, 0.0)


def autocast_disabled(like: Tensor) -> AbstractContextManager[torch.autocast | None]:
    """Return a context without autocast on the device of `like`: tensors keep their precision."""
    device = "cpu" if like.is_meta else like.device.type  # meta has no autocast
    # a compiler that meets no autocast need not know how to leave it
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()
