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
    """Give all filters the weights of the first one; return these, of shape (H,)."""
    first, *others = filters(model)
    for filter in others:
        filter.load_state_dict(first.state_dict())
    return [weight.detach().clone() for weight in (first.w0, first.w1, first.wK)]


@contextmanager
def replace_maps(
    weights: list[Tensor], model_dtype: torch.dtype = torch.float64, head_axis: int = 1
) -> Iterator[None]:
    """Let each softmax over keys return GFSA's H of its result, if the map is square.

    The heads are an axis of a map, or the faster part of the first of 3 axes. H has the dtype of
    the model, even where the model forms its maps in float32.
    """

    softmax = Tensor.softmax  # F.softmax calls it

    def write_out(input: Tensor, dim: int = -1, dtype: Any = None, **kwargs: Any) -> Tensor:
        A = softmax(input if dtype is None else input.to(dtype), dim)
        if dim not in (-1, A.ndim - 1) or A.ndim < 3 or A.shape[-1] != A.shape[-2]:
            return A
        axis, w = head_axis, [weight.double() for weight in weights]
        if A.ndim == 3:
            axis, w = 0, [weight.repeat(A.shape[0] // len(weight)) for weight in w]
        H = gfsa(A.double(), A, [x.view(-1, *[1] * (A.ndim - axis - 1)) for x in w], K=3)
        return H.to(model_dtype)

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
    ) -> Tensor:
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is None:
            return write_out(logits) @ v
        if attn_mask.dtype is torch.bool:
            return write_out(logits.masked_fill(~attn_mask, -torch.inf)) @ v
        return write_out(logits + attn_mask) @ v

    with pytest.MonkeyPatch.context() as patch:
        for holder, name in ((F, "softmax"), (torch, "softmax"), (Tensor, "softmax")):
            patch.setattr(holder, name, write_out)
        patch.setattr(F, "scaled_dot_product_attention", attend)
        yield
