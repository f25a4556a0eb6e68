"""Sums along shortest paths, one hop at a time, without storing any path.

A chain i - u - j, with messages m_1 of its first bond and m_2 of its second:

    hop 1:  S[i,u] = S[i,i] + m_1(i,u)  = m_1(i,u)
    hop 2:  S[i,j] = S[i,u] + m_2(u,j)  = m_1(i,u) + m_2(u,j)

If several u are one hop before j, S[i,j] is their mean, weighted by the numbers of their paths.
All pairs of a hop are computed at once. The gradient runs the same hops backwards.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """The terms of the recursion, sorted by hop; `sizes` are the numbers of terms of each hop."""

    pair: Tensor
    parent: Tensor
    bond: Tensor
    weight: Tensor
    sizes: tuple[int, ...]


def sum_along_paths(messages: Tensor, steps: Steps, num_pairs: int) -> Tensor:
    r"""Average, over the shortest paths of each pair, the sum of the messages of their bonds.

    .. math:: S_{ij} = \sum_{u} \frac{\sigma_{iu}}{\sigma_{ij}}
        \bigl(S_{iu} + m_{d_{ij}}(u, j)\bigr), \qquad S_{ii} = 0

    over the neighbors u of j that are one hop nearer to i, with :math:`\sigma` the number of
    shortest paths. Hops beyond those that have messages add nothing. Memory is that of S; the
    features of one path of each pair would need as many times more as paths have hops.

    Shapes: messages (L, U, H), of hop and bond -> (pairs, H); `steps` of S terms, whose `parent`
    is `num_pairs` if there is none.

    Source: section 3.1.2 of https://arxiv.org/abs/2106.05234 (the sum, over one path)

    >>> one, two = torch.tensor([[1.0]]), torch.tensor([[10.0]])  # a chain of three atoms
    >>> steps = Steps(*(torch.tensor(t) for t in ([1, 2], [3, 1], [0, 0], [1.0, 1.0])), (1, 1))
    >>> sum_along_paths(torch.stack([one, two]), steps, num_pairs=3).flatten()
    tensor([ 0.,  1., 11.])
    """
    return _SumAlongPaths.apply(messages, steps, num_pairs)


class _SumAlongPaths(torch.autograd.Function):
    """The recursion in place, and its gradient by the same steps backwards."""

    @staticmethod
    def forward(messages: Tensor, steps: Steps, num_pairs: int) -> Tensor:
        total = messages.new_zeros(num_pairs + 1, messages.shape[2])  # the last is "no parent"
        for hop, part in enumerate(_split_hops(steps)):
            step = total[part.parent]
            if hop < len(messages):
                step += messages[hop, part.bond]
            total.index_add_(0, part.pair, step.mul_(_weight_column(part, step)))
        return total[:-1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        messages, ctx.steps, _ = inputs
        ctx.shape = messages.shape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        grad, total = g.new_zeros(ctx.shape), torch.cat([g, g.new_zeros(1, g.shape[1])])
        for hop, part in reversed(list(enumerate(_split_hops(ctx.steps)))):
            step = total[part.pair]
            step.mul_(_weight_column(part, step))
            total.index_add_(0, part.parent, step)
            if hop < len(grad):
                grad[hop].index_add_(0, part.bond, step)
        return grad, None, None


def _split_hops(steps: Steps) -> list[Steps]:
    *columns, sizes = steps
    split = (column.split(list(sizes)) for column in columns)
    return [Steps(p, q, b, w, ()) for p, q, b, w in zip(*split, strict=True)]


def _weight_column(part: Steps, like: Tensor) -> Tensor:
    return part.weight.to(like.dtype).unsqueeze(-1)  # (S, 1)
