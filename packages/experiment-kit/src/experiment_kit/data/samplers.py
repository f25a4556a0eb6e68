"""Samplers whose order is a pure function of seed, epoch and rank."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from attention_core.checks import check_sizes
from torch.utils.data import SequentialSampler

_ROUND = 256  # RASampler's
_SPREAD = 0.1  # items whose logarithms differ by less may swap places in an epoch


def derive_seed(*key: object) -> int:
    """Return a seed of 63 bits for a key of any objects with a stable repr."""
    # seed + epoch, as in torch's DistributedSampler, would give seed 1 the orders of seed 0
    return random.Random(repr(key)).getrandbits(63)


class EpochSampler(SequentialSampler):
    """The items of one rank, in an order that is a pure function of the seed and the epoch.

    The order is dealt out to the ranks in turn and wraps around, so that all ranks have the same
    number of items and none is left out (a few are seen twice). ``skip`` items are left out of
    the first iteration only, while the length stays that of a whole epoch. The DataLoader draws
    the seeds of its workers from ``generator``.

    With ``repeats`` above 1 (repeated augmentation, arXiv:1901.09335), each item of the order is
    repeated that often before it is dealt out. An epoch remains as long as the data, cut to a
    multiple of 256, so that it contains only a part of the items. That is the rule of DeiT:
    https://github.com/facebookresearch/deit/blob/main/samplers.py

    It subclasses SequentialSampler, which Lightning does not replace where it overfits batches.

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
        check_sizes("sampler", size=size, repeats=repeats)
        self.generator = torch.Generator()
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch and so the order; forget a skip that was given for another epoch."""
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0
        self.generator.manual_seed(derive_seed("workers", self.seed, epoch, self.rank))

    def __len__(self) -> int:
        if self.repeats > 1 and self.size >= _ROUND:
            return self.size // _ROUND * _ROUND // self.num_replicas
        return math.ceil(self.size / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive_seed("order", self.seed, self.epoch))
            order = torch.randperm(self.size, generator=generator)
        mine = torch.arange(self.rank, len(self) * self.num_replicas, self.num_replicas)
        skip, self.skip = self.skip, 0
        return iter(order[mine // self.repeats % self.size].tolist()[skip:])


class PositionSampler(EpochSampler):
    """The same items, each as (epoch, position in the epoch, item)."""

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self.epoch, self.skip
        return ((epoch, place, item) for place, item in enumerate(super().__iter__(), start))


class BucketSampler(EpochSampler):
    """Batches of items of similar length, a pure function of lengths, seed and epoch.

    Items are sorted by length and cut into batches whose padded length is within the budget; the
    batches are shuffled and dealt out to the ranks as an `EpochSampler` does with items. An epoch
    sorts by l exp(u), u uniform in [0, 0.1), so that batches differ from epoch to epoch while
    their number and their sizes stay: the k-th item of an epoch is at most exp(0.1) times as long
    as the k-th item by length, and that bound is kept within the budget.

    Yields (epoch, position of the batch, items).

    >>> list(BucketSampler([3.0, 1.0, 1.0, 5.0], budget=6.0, seed=0, shuffle=False))
    [(0, 0, [1, 2]), (0, 1, [0]), (0, 2, [3])]
    """

    def __init__(
        self,
        lengths: Sequence[float],
        budget: float,
        seed: int,
        largest: int | None = None,
        shuffle: bool = True,
        epoch: int = 0,
        skip: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.lengths, self.budget = torch.tensor(lengths, dtype=torch.float64), budget
        self.largest = largest or len(lengths)
        if not (len(lengths) and budget > 0 and self.lengths.min() > 0 and self.largest > 0):
            raise ValueError("lengths, their budget and the largest batch must be positive")
        bound = self.lengths.sort().values
        if shuffle:
            bound = (bound * math.exp(_SPREAD)).clamp(max=bound[-1].item())
        self.sizes = compute_batch_sizes(bound.tolist(), budget, self.largest)
        super().__init__(len(self.sizes), seed, shuffle, epoch, skip, num_replicas, rank)

    def build_batches(self, epoch: int) -> list[list[int]]:
        """Return all batches of an epoch, the shortest items first."""
        key = self.lengths.log()
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive_seed("buckets", self.seed, epoch))
            draws = torch.rand(len(key), generator=generator, dtype=torch.float64)
            key = key + _SPREAD * draws
        order = key.sort(stable=True).indices.tolist()
        return [order[a:b] for a, b in pairwise(accumulate(self.sizes, initial=0))]

    def __iter__(self) -> Iterator[Any]:
        # a generator, which starts when it is read: Lightning makes iterators that it never reads
        epoch, start = self.epoch, self.skip
        batches = self.build_batches(epoch)
        for place, chosen in enumerate(super().__iter__(), start):
            yield epoch, place, batches[chosen]


def compute_batch_sizes(lengths: Sequence[float], budget: float, largest: int) -> list[int]:
    """Return batch sizes for ascending lengths, such that size times longest fits the budget.

    >>> compute_batch_sizes([1, 1, 2, 5, 9], budget=6, largest=4)
    [3, 1, 1]
    """
    sizes = [0]
    for length in lengths:
        if sizes[-1] and (sizes[-1] == largest or (sizes[-1] + 1) * length > budget):
            sizes.append(0)
        sizes[-1] += 1
    return sizes
