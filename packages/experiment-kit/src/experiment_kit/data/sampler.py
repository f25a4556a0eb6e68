"""The order of an epoch's items: a pure function of seed, epoch and rank."""

import math
import random
from collections.abc import Iterator

import torch
from torch.utils.data import SequentialSampler

_ROUND = 256  # of RASampler


class EpochSampler(SequentialSampler):
    """The items of one rank, in an order that is a pure function of the seed and the epoch.

    The order is dealt out to the ranks in turn and wraps round, so that all ranks have the same
    number of items and none is left out (a few are seen twice). ``skip`` items are left out of
    the first iteration only, while the length stays that of a whole epoch. ``generator`` is for
    the DataLoader, which draws the seeds of its workers from it. Raises a ValueError for a size,
    rank, skip or number of repeats that is out of range.

    With ``repeats`` above 1 (repeated augmentation, arXiv:1901.09335), each item of the order
    stands that often in a row, before it is dealt out; an epoch remains as long as the data, cut
    to a multiple of 256 where it has as many, so that it sees but a part of the items. That is
    the rule of DeiT's RASampler, https://github.com/facebookresearch/deit/blob/main/samplers.py.

    It is a SequentialSampler by name, which Lightning leaves alone where it overfits some batches.

    >>> sampler = EpochSampler(size=4, seed=0, shuffle=False, skip=1)
    >>> list(sampler), list(sampler), len(sampler)
    ([1, 2, 3], [0, 1, 2, 3], 4)
    >>> list(EpochSampler(size=4, seed=0, shuffle=False, repeats=3))
    [0, 0, 0, 1]
    """

    def __init__(
        self,
        size: int,
        seed: int,
        shuffle: bool = True,
        epoch: int = 0,
        skip: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        repeats: int = 1,
    ) -> None:
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.epoch, self.skip, self.repeats = epoch, skip, repeats
        self.num_replicas, self.rank = num_replicas, rank
        _check("size", size, 1, math.inf)
        _check("repeats", repeats, 1, math.inf)
        _check("rank", rank, 0, num_replicas - 1)
        _check("skip", skip, 0, len(self))
        self.generator = torch.Generator()
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; a skip that was given with another epoch is dropped."""
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0
        self.generator.manual_seed(mix("workers", self.seed, epoch, self.rank))

    def __len__(self) -> int:
        if self.repeats > 1 and self.size >= _ROUND:
            return self.size // _ROUND * _ROUND // self.num_replicas
        return math.ceil(self.size / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(mix("order", self.seed, self.epoch))
            order = torch.randperm(self.size, generator=generator)
        mine = torch.arange(self.rank, len(self) * self.num_replicas, self.num_replicas)
        skip, self.skip = self.skip, 0
        return iter(order[mine // self.repeats % self.size].tolist()[skip:])


def _check(name: str, value: int, low: int, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def mix(*key: object) -> int:
    """A seed of 63 bits for a key, whatever it is made of."""
    # seed + epoch, as in torch's DistributedSampler, gives seed 1 the orders of seed 0
    return random.Random(repr(key)).getrandbits(63)
