"""Cases of the kernel contract, and the comparison of a kernel with its literal map.

A new kernel adds one line to CASES; a test fails if a kernel has none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from attention_core import SelfAttention, kernels
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.cases import TIGHT, gradients

B, H, N, D = 2, 3, 11, 4  # more tokens than two chunks, a window or all landmarks hold
DIM = H * D


class Case(NamedTuple):
    """A kernel for (width, heads, longest sequence), and the properties that not all have.

    `unread` names the projections of SelfAttention that the kernel does not read.
    """

    name: str
    make: Callable[[int, int, int], nn.Module]
    linear_time: bool = True
    is_a_map: bool = True
    compiles: bool = False
    unread: str = ""
    padding_is_truncation: bool = True
    padding_is_zero: bool = True
    half_tolerance: float | None = 0.03  # None: in half precision it hashes tokens elsewhere


def _of(kernel: str, **options: Any) -> Callable[[int, int, int], nn.Module]:
    return lambda dim, heads, length: getattr(kernels, kernel)(dim, heads, **options)


def _bound(kernel: str, **options: Any) -> Callable[[int, int, int], nn.Module]:
    return lambda dim, heads, length: getattr(kernels, kernel)(dim, heads, length=length, **options)


def _soft(dim: int, heads: int, length: int) -> nn.Module:
    """Make SOFT with eight landmarks at any length, as the paper fixes their number."""
    return kernels.SOFT(dim, heads, ratio=-(-length // 8), kernel_size=3)


COMPILES, ROUGH = {"compiles": True}, {"half_tolerance": 0.05}
PUBLISHED = {"padding_is_truncation": False}
CASES = [
    Case("agf", _of("AGF", K=3, gamma=0.1), **COMPILES, padding_is_zero=False),
    Case("linear", _of("LinearAttention"), **COMPILES, **ROUGH),
    Case("linear-unnormalised", _of("LinearAttention", normalise=False), **COMPILES, **PUBLISHED,
         **ROUGH),
    Case("performer", _of("Performer", features=9), **COMPILES, half_tolerance=0.1),
    Case("linformer", _bound("Linformer", rank=5)),
    Case("nystromformer", _of("Nystromformer", landmarks=4, kernel_size=3)),
    Case("reformer", _of("Reformer", chunk=3, buckets=4), unread="k", half_tolerance=None),
    Case("longformer", _of("Longformer", window=4, global_tokens=1)),
    Case("yoso", _of("YOSO", tau=3, block=16), linear_time=False),
    Case("cosformer", _of("Cosformer"), **COMPILES, **ROUGH),
    Case("soft", _soft, unread="k", half_tolerance=0.1),
    Case("flowformer", _of("Flowformer"), **COMPILES, **ROUGH),
    Case("primalformer", _bound("Primalformer", rank=2, multiplier=3), is_a_map=False, unread="v"),
    Case("singularformer", _of("Singularformer", rank=3)),
]  # fmt: skip


def _variant(name: str, make: Callable[[int, int, int], nn.Module], **properties: Any) -> Case:
    """The same kernel with another option: padding, length and precision, nothing else."""
    base = next(case for case in CASES if case.name == name.split("-")[0])
    return base._replace(name=name, make=make, **properties)


VARIANTS = [
    _variant("agf-sigmoid", _of("AGF", K=3, gamma=0.1, rho="sigmoid", penalty_variant="paper")),
    _variant("agf-tanh", _of("AGF", K=3, gamma=0.1, rho="tanh")),
    _variant("agf-none", _of("AGF", K=3, gamma=0.1, rho="none", penalty_variant="paper")),
    _variant("performer-twice", _of("Performer", features=9, scaled="twice")),
    _variant("performer-relu", _of("Performer", features=9, activation="relu")),
    _variant("performer-zeroed", _of("Performer", features=9, mask_keys="zeroed"), **PUBLISHED),
    _variant("linformer-apart", _bound("Linformer", rank=5, share_kv=False, per_head=False)),
    _variant("nystromformer-exact", _of("Nystromformer", landmarks=7, kernel_size=0)),
    _variant("nystromformer-wide", _of("Nystromformer", landmarks=8, kernel_size=5)),
    _variant("reformer-hashes", _of("Reformer", chunk=3, hashes=3, max_buckets=4)),
    _variant("longformer-local", _of("Longformer", window=4)),
    _variant("yoso-blocks", _of("YOSO", block=2)),
    _variant("yoso-surrogate", _of("YOSO", tau=1, block=4, gradient="surrogate")),
    _variant("cosformer-padded", _of("Cosformer", horizon="padded"), **PUBLISHED),
    _variant("soft-convolution", _of("SOFT", ratio=3, kernel_size=3)),
    _variant("flowformer-relu", _of("Flowformer", features="relu")),
    _variant("primalformer-projected", _bound("Primalformer", rank=2, trace="projected")),
]
EVERY = CASES + VARIANTS


def all_cases(cases: list[Case] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def layer_of(case: Case, n: int = N, **slots) -> SelfAttention:
    return SelfAttention(DIM, H, kernel=partial(make, case, n), **slots)


def make(case: Case, n: int, dim: int, heads: int) -> nn.Module:
    """Make the kernel with random scalars, as AGF ignores those that it starts with."""
    kernel = case.make(dim, heads, n)
    for weight in kernel.parameters():
        if weight.ndim == 1:
            nn.init.normal_(weight)
    return kernel


def operands(n: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Draw q, k, x and v as leaves."""
    shapes = [(B, H, n, D), (B, H, n, D), (B, n, DIM), (B, H, n, D)]
    return tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)


def gaps() -> Tensor:
    """(B, N): one sample ends early, and both lack tokens before their end."""
    valid = torch.ones(B, N, dtype=torch.bool)
    valid[0, 2] = valid[1, 0] = valid[1, 4] = False
    valid[1, 7:] = False
    return valid


MASKS: dict[str, Callable[[], Tensor | None]] = {"none": lambda: None, "gaps": gaps}


Literal = Callable[[Tensor, Tensor, list[bool], int], Tensor]  # q, k, valid, head -> (N, N)


def list_valid(mask: Tensor | None, n: int = N) -> list[list[bool]]:
    return [[True] * n] * B if mask is None else mask.tolist()


def by_head(literal: Literal, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the map (B, H, n, n), sample by sample and head by head."""
    valid = list_valid(mask, q.shape[2])
    samples = [[literal(q[i, h], k[i, h], valid[i], h) for h in range(H)] for i in range(B)]
    return torch.stack([torch.stack(heads) for heads in samples])


def convolve(kernel: nn.Module, valid: list[bool], h: int) -> Tensor:
    """Compute the map of a convolution over the valid tokens, entry by entry."""
    band, n = torch.zeros(len(valid), len(valid)).double(), len(valid)
    if kernel.conv is None:
        return band
    w = kernel.conv[h, 0, :, 0]
    half = len(w) // 2
    for i, j in ((i, j) for i in range(n) for j in range(n) if valid[i] and valid[j]):
        if abs(j - i) <= half:
            band = band.index_put((torch.tensor(i), torch.tensor(j)), w[j - i + half])
    return band


def assert_is(
    kernel: nn.Module, literal: Literal, mask: Tensor | None, n: int = N, reads_keys: bool = True
) -> None:
    """The kernel is its literal map, once and twice as filters apply it, with all gradients."""
    q, k, x, v = operands(n)
    A, dense = kernel(q, k, x, mask), by_head(literal, q, k, mask)
    ours, theirs = (torch.cat([M @ v, M @ (M @ v)]) for M in (A, dense))
    assert_close(ours, theirs, **TIGHT)
    assert_close(A.dense(), dense, **TIGHT)
    leaves = [q, k, v] if reads_keys else [q, v]
    assert_same_gradients([*leaves, *kernel.parameters()], [ours], [theirs])


def assert_same_gradients(leaves: list[Tensor], ours: Sequence, theirs: Sequence) -> None:
    """Compare the gradients of all outputs at once; each leaf has one that is not zero."""
    ours, theirs = (torch.cat([y.flatten() for y in outputs]) for outputs in (ours, theirs))
    grads = gradients(leaves, ours, theirs)
    assert all(grad.any() for grad in grads[0])
    assert_close(*grads, **TIGHT)
