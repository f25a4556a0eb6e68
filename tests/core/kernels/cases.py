"""What the contract of kernels runs over: every kernel at small sizes, and what each claims.

A new kernel adds its line here; a test fails where one is missing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from attention_core import SelfAttention
from attention_core.kernels import (
    AGF,
    SOFT,
    YOSO,
    Cosformer,
    Flowformer,
    LinearAttention,
    Linformer,
    Longformer,
    Nystromformer,
    Performer,
    Primalformer,
    Reformer,
    Singularformer,
)
from torch import Tensor, nn

B, H, N, D = 2, 3, 11, 4  # more tokens than two chunks, a window or all landmarks hold
DIM = H * D
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


class Case(NamedTuple):
    """A kernel for (width, heads, longest sequence), and the properties that not all have.

    `unread` names the projections of SelfAttention that it leaves aside.
    """

    name: str
    make: Callable[[int, int, int], nn.Module]
    rows_sum_to_one: bool = False
    linear_time: bool = True
    is_a_map: bool = True
    compiles: bool = False
    unread: str = ""


def _of(kernel: type[nn.Module], **options: Any) -> Callable[[int, int, int], nn.Module]:
    return lambda dim, heads, length: kernel(dim, heads, **options)


def _bound(kernel: type[nn.Module], **options: Any) -> Callable[[int, int, int], nn.Module]:
    return lambda dim, heads, length: kernel(dim, heads, length=length, **options)


def _soft(dim: int, heads: int, length: int) -> nn.Module:
    """With eight landmarks at any length: the paper keeps their number, not their ratio."""
    return SOFT(dim, heads, ratio=-(-length // 8), kernel_size=3)


CASES = [
    Case("agf", _of(AGF, K=3, gamma=0.1), rows_sum_to_one=True, compiles=True),
    Case("linear", _of(LinearAttention), rows_sum_to_one=True, compiles=True),
    Case("linear-unnormalised", _of(LinearAttention, normalise=False), compiles=True),
    Case("performer", _of(Performer, features=9), rows_sum_to_one=True, compiles=True),
    Case("linformer", _bound(Linformer, rank=5)),
    Case("nystromformer", _of(Nystromformer, landmarks=4, kernel_size=3)),
    Case("reformer", _of(Reformer, chunk=3, buckets=4), rows_sum_to_one=True, unread="k"),
    Case("longformer", _of(Longformer, window=4, global_tokens=1), rows_sum_to_one=True),
    Case("yoso", _of(YOSO, tau=3, block=16), linear_time=False),
    Case(
        "cosformer", _of(Cosformer), compiles=True
    ),  # a query without a positive number reads none
    Case("soft", _soft, unread="k"),
    Case("flowformer", _of(Flowformer), compiles=True),
    Case("primalformer", _bound(Primalformer, rank=2, multiplier=3), is_a_map=False, unread="v"),
    Case("singularformer", _of(Singularformer, rank=3), rows_sum_to_one=True),
]
MAPS = [case for case in CASES if case.is_a_map]


def all_cases(cases: list[Case] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def layer_of(case: Case, n: int = N, **slots) -> SelfAttention:
    return SelfAttention(DIM, H, kernel=partial(make, case, n), **slots)


def make(case: Case, n: int, dim: int, heads: int) -> nn.Module:
    """With every scalar off its start, where AGF ignores it."""
    kernel = case.make(dim, heads, n)
    for weight in kernel.parameters():
        if weight.ndim == 1:
            nn.init.normal_(weight)
    return kernel


def operands() -> tuple[Tensor, ...]:
    """q, k, x and v in float64."""
    shapes = [(B, H, N, D), (B, H, N, D), (B, N, DIM), (B, H, N, D)]
    return tuple(torch.randn(shape).double().requires_grad_() for shape in shapes)


def gaps() -> Tensor:
    """(B, N): one sample ends early, and both lack tokens before their end."""
    valid = torch.ones(B, N, dtype=torch.bool)
    valid[0, 2] = valid[1, 0] = valid[1, 4] = False
    valid[1, 7:] = False
    return valid


MASKS: dict[str, Callable[[], Tensor | None]] = {"none": lambda: None, "gaps": gaps}
