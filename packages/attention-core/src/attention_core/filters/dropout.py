"""Dropout in filters: of the map A once for all its applications, or of the filtered map H."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.filters.plain import Plain
from attention_core.operators import Host, Softmax


def share_dropout(filter: nn.Module) -> nn.Module:
    """Make a filter apply the same dropped map each time in a pass, and return it.

    Published code forms A, drops some of its entries, and squares what is left. Without this, each
    fused application of A drops other entries.

    Source: https://github.com/jeongwhanchoi/GFSA (NLP, Graph)
    """
    filter.dropout_mask = "shared"  # type: ignore[assignment]
    filter.register_forward_pre_hook(_share_dropout)
    return filter


def _share_dropout(filter: nn.Module, inputs: tuple[Any, ...]) -> None:
    if isinstance(A := getattr(inputs[0], "A", inputs[0]), Softmax):  # or new rows of one
        A.shares_dropout = True


def dropout_on_H(filter: nn.Module) -> nn.Module:
    r"""Make a filter drop entries of the map H that it applies, not of A, and return it.

    .. math:: y = \mathrm{dropout}(H(A))\, v

    Published code forms H, and so does this wherever there is dropout, in O(N^2) memory; without
    dropout nothing changes. Of `Plain`, whose H is A, nothing changes either.

    Source: https://github.com/jeongwhanchoi/GFSA (Image, Speech, Code)
    """
    if not isinstance(filter, Plain):
        filter.dropout_mask = "filtered"  # type: ignore[assignment]
        filter.register_forward_pre_hook(_pass_identity)
        filter.register_forward_hook(_apply_dropped)
    return filter


class _MapWithValues(Host):
    """A dense map and its mask for a filter that is applied to the identity; the values for H."""

    def __init__(self, A: Softmax | Host, v: Tensor) -> None:
        A_dense, identity = A.dense().to(v.dtype), A.eye().to(v.dtype)
        self.identity, self.v, self.rate = identity, v, A.dropout
        self.mask, self.is_causal = getattr(A, "mask", None), getattr(A, "is_causal", False)
        # A times the identity is A
        super().__init__(lambda u: A_dense if u is identity else A_dense @ u, v, A.average)


def _pass_identity(filter: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    A, v = inputs
    if getattr(A, "dropout", 0) == 0:
        return None
    dense = _MapWithValues(A, v)
    return dense, dense.identity


def _apply_dropped(filter: nn.Module, inputs: tuple[Any, ...], H: Tensor) -> Tensor | None:
    A = inputs[0]
    return F.dropout(H, A.rate).to(A.v.dtype) @ A.v if isinstance(A, _MapWithValues) else None
