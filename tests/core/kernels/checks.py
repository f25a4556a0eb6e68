"""What the tests of kernels share: operands whose sizes all differ, and ways to compare maps."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

B, H, N, D, REAL = 2, 3, 7, 4, 5  # the second sample has REAL tokens, the first N
DIM = H * D
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def operands(n: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """q, k, x and v, as leaves."""
    shapes = [(B, H, n, D), (B, H, n, D), (B, n, DIM), (B, H, n, D)]
    return tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)


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


def by_head(literal: Literal, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The map (B, H, N, N), sample by sample and head by head."""
    valid = (torch.ones(B, N, dtype=torch.bool) if mask is None else mask).tolist()
    samples = [[literal(q[i, h], k[i, h], valid[i], h) for h in range(H)] for i in range(B)]
    return torch.stack([torch.stack(heads) for heads in samples])


def assert_is(kernel: nn.Module, literal: Literal, mask: Tensor | None) -> None:
    """The kernel is its literal map, once and twice as filters apply it, with all gradients."""
    q, k, x, v = operands()
    A, dense = kernel(q, k, x, mask), by_head(literal, q, k, mask)
    ours, theirs = (torch.cat([M @ v, M @ (M @ v)]) for M in (A, dense))
    assert_close(ours, theirs, **TIGHT)
    assert_close(A.dense(), dense, **TIGHT)
    assert_close(A @ A.eye(), dense, **TIGHT)
    leaves, weight = [q, k, v, *kernel.parameters()], torch.randn_like(ours)
    grads = (torch.autograd.grad(y, leaves, weight) for y in (ours, theirs))
    for mine, yours in zip(*grads, strict=True):
        assert mine.any()
        assert_close(mine, yours, **TIGHT)


def assert_padding_is_truncation(kernel: nn.Module) -> None:
    """In values, gradients and averages, whatever the padding holds and the mask looks like."""
    q, k, x, v = operands()
    short = kernel(q[:, :, :REAL], k[:, :, :REAL], x[:, :REAL])
    valid = (torch.arange(N) < REAL).expand(B, N)
    for mask in (valid, valid[:, None, None], torch.where(valid[:, None, None], 0.0, -torch.inf)):
        padded = kernel(q, k, x, mask)
        ours, theirs = (padded @ v)[:, :, :REAL], short @ v[:, :, :REAL]
        assert_close(ours, theirs, **TIGHT)
        for mine, yours in zip(
            torch.autograd.grad(ours.square().sum(), [q, k, v]),
            torch.autograd.grad(theirs.square().sum(), [q, k, v], retain_graph=True),
            strict=True,
        ):
            assert_close(mine, yours, **TIGHT)
        assert not (padded @ v)[:, :, REAL:].any()
        assert_close(padded.average(v), v[:, :, :REAL].mean(-2, keepdim=True))


def assert_survives_padding_alone(kernel: nn.Module) -> None:
    """A sample without a real token puts out zero, and no gradient is lost to NaN."""
    q, k, x, v = operands()
    valid = padding()
    valid[1] = False
    y = kernel(q, k, x, valid) @ v
    assert not y[1].any()
    grads = torch.autograd.grad(99 * y.sum(), [q, k, v, *kernel.parameters()])
    assert y[0].any()
    assert all(t.isfinite().all() for t in (y, *grads))


def assert_works_in_half(make: Callable[[], nn.Module], tolerance: float = 0.03) -> None:
    """Under autocast and in bf16 the dtype of the values stays, and the numbers nearly do."""
    q, k, x, v = (t.detach() for t in operands(dtype=torch.float32))
    kernel = make()
    exact = kernel(q, k, x, padding()) @ v
    q, k, x, v = (t.bfloat16() for t in (q, k, x, v))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = kernel(q, k, x, padding()) @ v
    half = kernel.bfloat16()(q, k, x, padding()) @ v
    for y in (mixed, half):
        assert y.dtype == torch.bfloat16
        assert_close(y.float(), exact, rtol=tolerance, atol=tolerance)


def assert_takes_one_token(kernel: nn.Module) -> None:
    q, k, x, v = operands(n=1)
    y = kernel(q, k, x) @ v
    assert y.shape == v.shape
    assert y.isfinite().all()


def assert_refuses_a_direction(kernel: nn.Module) -> None:
    q, k, x, _ = operands()
    with pytest.raises(ValueError, match="keys alone"):
        kernel(q, k, x, torch.ones(B, 1, N, N).tril().bool())
