"""Sums along shortest paths, a hop at a time: no path is ever laid out."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Steps(NamedTuple):
    """The terms of the recursion, sorted by hop; `sizes` says how many each hop has."""

    pair: Tensor
    parent: Tensor
    bond: Tensor
    weight: Tensor
    sizes: tuple[int, ...]


def accumulate(messages: Tensor, steps: Steps, pairs: int) -> Tensor:
    r"""Mean over the shortest paths of each pair of the messages of their bonds.

    .. math:: S_{ij} = \sum_{u} \frac{\sigma_{iu}}{\sigma_{ij}}
        \bigl(S_{iu} + m_{d_{ij}}(u, j)\bigr), \qquad S_{ii} = 0

    over the neighbours u of j that are one hop nearer to i, with :math:`\sigma` the number of
    shortest paths. Hops beyond those that have messages add nothing. Memory is that of S, where
    the features of one path of each pair take as many times more as paths have hops.

    Shapes: messages (L, U, H), of hop and bond -> (pairs, H); `steps` of S terms, whose `parent`
    is `pairs` where there is none.

    Source: section 3.1.2 of https://arxiv.org/abs/2106.05234 (the sum, over one path)

    >>> one, two = torch.tensor([[1.0]]), torch.tensor([[10.0]])  # a chain of three atoms
    >>> steps = Steps(*(torch.tensor(t) for t in ([1, 2], [3, 1], [0, 0], [1.0, 1.0])), (1, 1))
    >>> accumulate(torch.stack([one, two]), steps, pairs=3).flatten()
    tensor([ 0.,  1., 11.])
    """
    return _Accumulate.apply(messages, steps, pairs)


class _Accumulate(torch.autograd.Function):
    """The recursion in place, and its gradient by the same steps backwards."""

    @staticmethod
    def forward(messages: Tensor, steps: Steps, pairs: int) -> Tensor:
        total = messages.new_zeros(pairs + 1, messages.shape[2])  # the last is that of no parent
        for hop, part in enumerate(_hops(steps)):
            step = total[part.parent]
            if hop < len(messages):
                step += messages[hop, part.bond]
            total.index_add_(0, part.pair, step.mul_(_column(part, step)))
        return total[:-1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        messages, ctx.steps, _ = inputs
        ctx.shape = messages.shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        found, total = g.new_zeros(ctx.shape), torch.cat([g, g.new_zeros(1, g.shape[1])])
        for hop, part in reversed(list(enumerate(_hops(ctx.steps)))):
            step = total[part.pair]
            step.mul_(_column(part, step))
            total.index_add_(0, part.parent, step)
            if hop < len(found):
                found[hop].index_add_(0, part.bond, step)
        return found, None, None


def _hops(steps: Steps) -> list[Steps]:
    *columns, sizes = steps
    split = (column.split(list(sizes)) for column in columns)
    return [Steps(p, q, b, w, ()) for p, q, b, w in zip(*split, strict=True)]


def _column(part: Steps, like: Tensor) -> Tensor:
    return part.weight.to(like.dtype).unsqueeze(-1)
