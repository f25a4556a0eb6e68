"""Dropout of the map that a filter applies: once for all its applications."""

from typing import Any

from torch import nn

from attention_core.operators import Softmax


def share_dropout(filter: nn.Module) -> nn.Module:
    """Make a filter apply the same dropped map each time in a pass, and return it.

    Published code forms A, drops some of its entries, and squares what is left. Without this, each
    fused application of A drops other entries.

    Source: https://github.com/jeongwhanchoi/GFSA (NLP, Graph)
    """
    filter.register_forward_pre_hook(_share_dropout)
    return filter


def _share_dropout(filter: nn.Module, inputs: tuple[Any, ...]) -> None:
    if isinstance(inputs[0], Softmax):
        inputs[0].shares_dropout = True
