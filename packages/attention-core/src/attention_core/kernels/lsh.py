"""Locality-sensitive hashing: maps between tokens of the same or a neighboring bucket."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.operators import LinearMap
from attention_core.operators.base import check_values


class LSHChunks(NamedTuple):
    """Tokens sorted by bucket, round by round, and cut into chunks of c slots.

    Shapes: order (B, H, R, C, c), the token in each slot, padding and empty slots last; num_valid
    (B,), the number of valid tokens of a sample; last (B,), the chunk before the first, None where
    all rounds form one ring; slot (B, H, R, C c), the slot of each token.
    """

    order: Tensor
    num_valid: Tensor
    last: Tensor | None
    slot: Tensor

    @classmethod
    def from_order(cls, order: Tensor, num_valid: Tensor, last: Tensor | None) -> "LSHChunks":
        """Build the chunks of an order, and invert it."""
        flat = order.flatten(3)
        slots = torch.arange(flat.shape[-1], device=order.device).expand_as(flat)
        return cls(order, num_valid, last, torch.empty_like(flat).scatter_(-1, flat, slots))

    def gather_tokens(self, t: Tensor) -> Tensor:
        """Move tokens to their slots, (B, H, N, D) -> (B, H, R, C, c, D)."""
        count, width = self.order.shape[-2:]
        t = F.pad(t, (0, 0, 0, count * width - t.shape[2]))
        return _take_rows(t, self.order.flatten(2)).view(*self.order.shape, t.shape[-1])

    def scatter_slots(self, t: Tensor) -> Tensor:
        """Move slots back to their tokens, (B, H, R, C, c, D) -> (B, H, R, C c, D)."""
        return _take_rows(t.flatten(3, 4), self.slot)

    def pair_chunks(self, t: Tensor) -> Tensor:
        """Prepend the previous chunk, (B, H, R, C, c, ...) -> (B, H, R, C, 2c, ...)."""
        if self.last is None:
            closing = t[:, :, :, -1].roll(1, dims=2)
        else:
            closing = t[torch.arange(len(t), device=t.device), :, :, self.last]
        before = torch.cat([closing.unsqueeze(3), t[:, :, :, :-1]], dim=3)
        return torch.cat([before, t], dim=4)

    def softmax_over_rounds(self, t: Tensor) -> Tensor:
        """Take the softmax of one number a slot over each token's rounds, (B, H, R, C, c, 1)."""
        return _take_rows(self.scatter_slots(t).softmax(2), self.order.flatten(3)).view_as(t)

    def allowed_keys(self) -> Tensor:
        """Return the keys that are valid and no copy of the chunk itself, (B, 1, 1, C, 1, 2c)."""
        count, width = self.order.shape[-2:]
        slots = torch.arange(count * width, device=self.order.device).view(count, width)
        valid = self.pair_chunks(slots < self.num_valid.view(-1, 1, 1, 1, 1))
        last = torch.full_like(self.num_valid, count - 1) if self.last is None else self.last
        before = torch.arange(2 * width, device=self.order.device) < width
        copies = before & (slots[:, :1] == 0) & (last.view(-1, 1, 1, 1, 1) == 0)
        return (valid & ~copies).unsqueeze(4)


def _take_rows(t: Tensor, index: Tensor) -> Tensor:
    """Gather whole rows, t (..., N, D) and index (..., M) -> (..., M, D)."""
    first = torch.arange(t.shape[:-2].numel(), device=t.device).view(*t.shape[:-2], 1)
    return F.embedding(index + first * t.shape[-2], t.reshape(-1, t.shape[-1]))


class LSHOperator(LinearMap):
    r"""A map between tokens of neighboring buckets: gather, multiply each chunk, scatter.

    .. math:: A v = \sum_r P_r^\top W_r P_r v

    with P_r the order of round r, and W_r block-bidiagonal and multiplied by the round's share.

    Shapes: weights (B, H, R, C, c, 2c), share (B, H, R, C, c, 1), q (B, H, N, d), mask (B, 1, 1, N)
    boolean or None. An application takes O(R N c D) time and O(R N (c + D)) memory.

    Source: sec. 2 of https://arxiv.org/abs/2001.04451
    """

    def __init__(
        self, chunks: LSHChunks, weights: Tensor, share: Tensor, q: Tensor, mask: Tensor | None
    ) -> None:
        self.chunks, self.weights, self.share = chunks, weights, share
        self.like, self.mask = weights.new_empty(()).expand_as(q), mask

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attend in each round, and sum over the rounds."""
        check_values(v, self.like.shape[-2])
        y = self.weights.to(v.dtype) @ self.chunks.pair_chunks(self.chunks.gather_tokens(v))
        return self.chunks.scatter_slots(y * self.share.to(v.dtype)).sum(2)[:, :, : v.shape[2]]
