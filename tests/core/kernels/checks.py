"""A kernel against its literal map, on operands that are short enough for loops over tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.cases import gradients
from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, TIGHT, B, D, H

__all__ = ["DIM", "MASKS", "REAL", "TIGHT", "B", "D", "H", "N"]
N, REAL = 7, 5  # the second sample has REAL tokens, the first N


def operands(n: int = N) -> tuple[Tensor, ...]:
    """Draw q, k, x and v in float64, as leaves."""
    return cases.operands(n)


def padding() -> Tensor:
    """(B, N): the second sample ends early."""
    valid = torch.ones(B, N, dtype=torch.bool)
    valid[1, REAL:] = False
    return valid


def gaps() -> Tensor:
    """(B, N): as in LRA's images, whose black pixels count as padding wherever they are."""
    valid = padding()
    valid[0, 2] = valid[1, 0] = valid[1, 4] = False
    return valid


MASKS = {"none": lambda: None, "padding": padding, "gaps": gaps}


Literal = Callable[[Tensor, Tensor, list[bool], int], Tensor]  # q, k, valid, head -> (N, N)


def list_valid(mask: Tensor | None, n: int = N) -> list[list[bool]]:
    return [[True] * n] * B if mask is None else mask.tolist()


def by_head(literal: Literal, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the map (B, H, n, n), sample by sample and head by head."""
    valid = list_valid(mask, q.shape[2])
    samples = [[literal(q[i, h], k[i, h], valid[i], h) for h in range(H)] for i in range(B)]
    return torch.stack([torch.stack(heads) for heads in samples])


def assert_is(kernel: nn.Module, literal: Literal, mask: Tensor | None, n: int = N) -> None:
    """The kernel is its literal map, once and twice as filters apply it, with all gradients."""
    q, k, x, v = operands(n)
    A, dense = kernel(q, k, x, mask), by_head(literal, q, k, mask)
    ours, theirs = (torch.cat([M @ v, M @ (M @ v)]) for M in (A, dense))
    assert_close(ours, theirs, **TIGHT)
    assert_close(A.dense(), dense, **TIGHT)
    assert_close(A @ A.eye(), dense, **TIGHT)
    assert_same_gradients([q, k, v, *kernel.parameters()], [ours], [theirs])


def assert_same_gradients(
    leaves: list[Tensor], ours: Sequence[Tensor], theirs: Sequence[Tensor]
) -> None:
    """Compare the gradients of all outputs at once; each leaf has one that is not zero."""
    ours, theirs = (torch.cat([y.flatten() for y in outputs]) for outputs in (ours, theirs))
    grads = gradients(leaves, ours, theirs)
    assert all(grad.any() for grad in grads[0])
    assert_close(*grads, **TIGHT)
