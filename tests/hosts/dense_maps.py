"""Write the filters of a stock model out: each map that it forms becomes H(A), a dense matrix."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.core.reference import gfsa
from tests.hosts.helpers import filters


def share_weights(model: nn.Module) -> list[Tensor]:
    """Give all filters the weights of the first one; return these in float64, of shape (H,)."""
    first, *others = filters(model)
    for filter in others:
        filter.load_state_dict(first.state_dict())
    return [w.detach().double().requires_grad_() for w in (first.w0, first.w1, first.wK)]


@contextmanager
def replace_maps(weights: list[Tensor], model_dtype: torch.dtype = torch.float64) -> Iterator[None]:
    """Let each softmax over keys return GFSA's H of its result, if the map is square.

    The last column may be an attention sink. The heads are the first axis of their size, or the
    faster part of the first of 3 axes. H has the dtype of the model, even where the model forms its
    maps in float32.
    """
    softmax, heads = Tensor.softmax, len(weights[0])  # F.softmax calls it

    def find_head_axis(x: Tensor) -> int:
        return next(i for i in range(1, x.ndim) if x.shape[i] == heads) if x.ndim > 3 else 0

    def write_out(input: Tensor, dim: int = -1, dtype: Any = None, **kwargs: Any) -> Tensor:
        A = softmax(input if dtype is None else input.to(dtype), dim)
        sinks = A.shape[-1] - A.shape[-2] if A.ndim > 2 else -1
        if dim not in (-1, A.ndim - 1) or sinks not in (0, 1):
            return A
        A, sink = A.tensor_split([A.shape[-2]], -1)
        axis = find_head_axis(A)
        by_head = [w if axis else w.repeat(len(A) // heads) for w in weights]
        H = gfsa(A.double(), A, [w.view(-1, *[1] * (A.ndim - axis - 1)) for w in by_head], K=3)
        return torch.cat([H.to(model_dtype), sink], -1)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        axis = find_head_axis(q)
        k, v = (x.repeat_interleave(q.shape[axis] // x.shape[axis], axis) for x in (k, v))
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            lowest = torch.finfo(q.dtype).min  # a row without a key stays finite
            attn_mask = q.new_zeros(()).masked_fill(~attn_mask, lowest)
        return write_out(logits if attn_mask is None else logits + attn_mask) @ v

    with pytest.MonkeyPatch.context() as patch:
        for holder in (F, torch, Tensor):
            patch.setattr(holder, "softmax", write_out)
        patch.setattr(F, "scaled_dot_product_attention", attend)
        yield
