"""A polynomial of each number of a tensor, with a backward pass that saves only the tensor."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attention_core.operators import Step, evaluate_polynomial, is_traced

CACHED = 2**16  # numbers in a block on a CPU: a dozen such blocks stay in cache


def pointwise_polynomial(s: Tensor, theta: Tensor, steps: Sequence[Step]) -> Tensor:
    r"""Evaluate the frequency response of a filter at singular values s.

    .. math:: g(s) = \sum_{k=0}^{K} \theta_k T_k(s)

    Autograd would save two tensors of the size of s for each order; here the backward pass runs the
    recurrence again, on a CPU in blocks that stay in cache. Compilers get the plain form.

    Shapes: s any, theta (K + 1,), K steps -> the shape of s.

    Source: eqs. 9 and 22-26 of https://arxiv.org/abs/2505.08516
    """
    if is_traced():
        return _literal(s, theta, steps)
    return _Response.apply(s, theta, steps)  # type: ignore[no-untyped-call]


def _literal(s: Tensor, theta: Tensor, steps: Sequence[Step]) -> Tensor:
    return evaluate_polynomial(steps, list(theta.to(s.dtype)), s.mul, s.new_ones(()))


def _blocks(s: Tensor) -> Iterator[slice]:
    each = CACHED if s.device.type == "cpu" else max(1, s.numel())
    return (slice(start, start + each) for start in range(0, s.numel(), each))


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, theta: Tensor, steps: Sequence[Step]) -> Tensor:
        ctx.steps, flat = steps, s.reshape(-1)
        ctx.save_for_backward(s, theta)
        g = torch.empty_like(flat)
        for block in _blocks(flat):
            g[block] = _literal(flat[block], theta, steps)
        return g.view(s.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, theta = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph, autograd differentiates the recurrence
            s, theta = (t.view_as(t).requires_grad_() for t in (s, theta))
            g = _literal(s, theta, ctx.steps)
            return *torch.autograd.grad(g, (s, theta), grad, create_graph=True), None
        flat, upper = s.reshape(-1), grad.reshape(-1)
        ds, dtheta = torch.empty_like(flat), torch.zeros_like(theta, dtype=s.dtype)
        for block in _blocks(flat):
            slope, sums = _adjoint(flat[block], upper[block], theta.to(s.dtype), ctx.steps)
            ds[block] = slope
            dtheta += sums
        return ds.view(s.shape), dtheta.to(theta.dtype), None


def _adjoint(s: Tensor, g: Tensor, theta: Tensor, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
    """Return the gradients of s and of theta: T_k and its derivative are computed together."""
    older = newer = torch.ones_like(s)
    older_slope = newer_slope = slope = torch.zeros_like(s)
    sums = [g.sum()]
    for (a, b, c), weight in zip(steps, theta[1:], strict=True):
        x = a * s + b
        term = torch.addcmul(older * -c, x, newer)
        term_slope = torch.addcmul(older_slope * -c, x, newer_slope).add_(newer, alpha=a)
        older, newer, older_slope, newer_slope = newer, term, newer_slope, term_slope
        slope = torch.addcmul(slope, weight, term_slope)
        sums.append(torch.dot(g, term))
    return slope * g, torch.stack(sums)
