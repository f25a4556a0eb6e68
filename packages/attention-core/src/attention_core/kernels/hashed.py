"""Maps between tokens that share a bucket, or neighbouring ones: gather, multiply, scatter."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.operators import identity, masked_mean


class Chunks(NamedTuple):
    """Tokens in the order of their buckets, round by round, cut into chunks of c slots.

    Shapes: order (B, H, R, C, c), the token in each slot, padding and empty slots last; real
    (B,), the tokens of a sample; last (B,), the chunk before the first, None where all rounds
    are one ring; slot (B, H, R, C c), where each token is.

    Source: sec. 2 of https://arxiv.org/abs/2001.04451

    >>> order = torch.tensor([2, 0, 1, 3]).view(1, 1, 1, 2, 2)
    >>> chunks = Chunks.of(order, torch.tensor([4]), torch.tensor([1]))
    >>> chunks.paired(chunks.order)[0, 0, 0]
    tensor([[1, 3, 2, 0],
            [2, 0, 1, 3]])
    """

    order: Tensor
    real: Tensor
    last: Tensor | None
    slot: Tensor

    @classmethod
    def of(cls, order: Tensor, real: Tensor, last: Tensor | None) -> "Chunks":
        """The chunks of an order."""
        return cls(order, real, last, order.flatten(3).argsort(-1))

    def gather(self, t: Tensor) -> Tensor:
        """Tokens into their slots, (B, H, N, D) -> (B, H, R, C, c, D)."""
        count, width = self.order.shape[-2:]
        t = F.pad(t, (0, 0, 0, count * width - t.shape[2]))
        slots = self.order.flatten(2).unsqueeze(-1).expand(-1, -1, -1, t.shape[-1])
        return t.gather(2, slots).view(*self.order.shape, -1)

    def scatter(self, t: Tensor) -> Tensor:
        """Slots to their tokens, (B, H, R, C, c, D) -> (B, H, R, C c, D)."""
        slots = self.slot.unsqueeze(-1).expand(-1, -1, -1, -1, t.shape[-1])
        return t.flatten(3, 4).gather(3, slots)

    def paired(self, t: Tensor) -> Tensor:
        """Each chunk behind the one before it, (B, H, R, C, c, ...) -> (B, H, R, C, 2c, ...)."""
        if self.last is None:
            closing = t[:, :, :, -1].roll(1, dims=2)
        else:
            closing = t[torch.arange(len(t), device=t.device), :, :, self.last]
        before = torch.cat([closing.unsqueeze(3), t[:, :, :, :-1]], dim=3)
        return torch.cat([before, t], dim=4)

    def softmax_of_rounds(self, t: Tensor) -> Tensor:
        """Softmax over the rounds of each token, of one number a slot, (B, H, R, C, c, 1)."""
        rounds = self.scatter(t).softmax(2)
        return rounds.gather(3, self.order.flatten(3).unsqueeze(-1)).view_as(t)

    def allowed(self) -> Tensor:
        """Keys that are real and no copy of the chunk itself, (B, 1, 1, C, 1, 2c)."""
        count, width = self.order.shape[-2:]
        slots = torch.arange(count * width, device=self.real.device).view(count, width)
        real = self.paired(slots < self.real.view(-1, 1, 1, 1, 1))
        last = torch.full_like(self.real, count - 1) if self.last is None else self.last
        before = torch.arange(2 * width, device=self.real.device) < width
        copies = before & (slots[:, :1] == 0) & (last.view(-1, 1, 1, 1, 1) == 0)
        return (real & ~copies).unsqueeze(4)


class Hashed:
    r"""A map between tokens whose buckets are near: gather, a product a chunk, scatter.

    .. math:: A v = \sum_r P_r^\top W_r P_r v

    with P_r the order of round r and W_r block-bidiagonal, its weights those of the round included.

    Shapes: weights (B, H, R, C, c, 2c), mask (B, 1, 1, N) boolean or None; n = N tokens. An
    application takes O(R N c D) time and O(R N (c + D)) memory.

    Source: sec. 2 of https://arxiv.org/abs/2001.04451

    >>> one = Chunks.of(torch.tensor([1, 0]).view(1, 1, 1, 1, 2), torch.tensor([2]), None)
    >>> weights = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    >>> Hashed(one, weights[None, None, None, None], 2).dense()
    tensor([[[[0.5000, 0.5000],
              [0.0000, 1.0000]]]])
    """

    def __init__(self, chunks: Chunks, weights: Tensor, n: int, mask: Tensor | None = None) -> None:
        self.chunks, self.weights, self.n, self.mask = chunks, weights, n, mask

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attend in each round, and add the rounds."""
        y = self.weights.to(v.dtype) @ self.chunks.paired(self.chunks.gather(v))
        return self.chunks.scatter(y).sum(2)[:, :, : self.n]

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, N), for looking at it."""
        return self @ self.eye()

    def eye(self) -> Tensor:
        """The identity as values, (B, H, N, N)."""
        return identity(self.weights[:, :, 0, 0], self.n)
