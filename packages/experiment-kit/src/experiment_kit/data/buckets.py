"""Training batches of items of like length, as many as a budget of padded length allows."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset

from experiment_kit.data.loader import EpochLoader, Seeded, overfits, position
from experiment_kit.data.sampler import EpochSampler, mix

_SPREAD = 0.1  # of logarithms: items that differ by less may change places in an epoch


class BucketSampler(EpochSampler):
    """The batches of one rank, a pure function of lengths, seed and epoch.

    Items are sorted by length, cut into batches, and the batches shuffled and dealt out to the
    ranks as an `EpochSampler` does with items. An epoch sorts by l exp(u), u uniform in
    [0, 0.1), so that batches differ from epoch to epoch while their number and their sizes stay:
    the k-th item of an epoch is at most exp(0.1) times as long as the k-th item by length, and
    that bound is kept within the budget. Each item is drawn once an epoch, a few of them twice
    where the batches do not divide by the ranks.

    Yields the epoch, the batch's place in it, and its items. Raises ValueError for lengths,
    a budget or a largest size that are not positive, and for what `EpochSampler` refuses.

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
        self.sizes = cut(bound.tolist(), budget, self.largest)
        super().__init__(len(self.sizes), seed, shuffle, epoch, skip, num_replicas, rank)

    def batches(self, epoch: int) -> list[list[int]]:
        """All batches of an epoch, the shortest items first."""
        key = self.lengths.log()
        if self.shuffle:
            generator = torch.Generator().manual_seed(mix("buckets", self.seed, epoch))
            draws = torch.rand(len(key), generator=generator, dtype=torch.float64)
            key = key + _SPREAD * draws
        order = key.sort(stable=True).indices.tolist()
        return [order[a:b] for a, b in pairwise(accumulate(self.sizes, initial=0))]

    def __iter__(self) -> Iterator[Any]:
        # a generator, which begins when it is read: Lightning makes iterators that it never reads
        epoch, start = self.epoch, self.skip
        batches = self.batches(epoch)
        for place, chosen in enumerate(super().__iter__(), start):
            yield epoch, place, batches[chosen]


def cut(lengths: Sequence[float], budget: float, largest: int) -> list[int]:
    """The sizes of batches of ascending lengths, each size times its last length in the budget.

    An item that is longer than the budget is a batch of its own.

    >>> cut([1, 1, 2, 5, 9], budget=6, largest=4)
    [3, 1, 1]
    """
    sizes = [0]
    for length in lengths:
        if sizes[-1] and (sizes[-1] == largest or (sizes[-1] + 1) * length > budget):
            sizes.append(0)
        sizes[-1] += 1
    return sizes


class _SeededBatches(Seeded):
    """Takes what a `BucketSampler` yields."""

    def __getitem__(self, batch: tuple[int, int, list[int]]) -> list[Any]:
        epoch, place, items = batch
        return self.__getitems__([(epoch, place, item) for item in items])


class _Batches(Dataset[Any]):
    """A data set whose items are the batches of another."""

    def __init__(self, dataset: Dataset[Any], batches: list[list[int]]) -> None:
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> list[Any]:
        return [self.dataset[item] for item in self.batches[place]]


class _BucketLoader(EpochLoader):
    """Names the budget too among what must not change in mid-epoch."""

    def state_dict(self) -> dict[str, Any]:
        sampler = self.sampler
        assert isinstance(sampler, BucketSampler)
        budget = {"budget of a batch": sampler.budget, "largest batch": sampler.largest}
        return {**budget, "number of items": len(sampler.lengths), **super().state_dict()}


def bucketed_loader(
    dataset: Dataset[Any],
    lengths: Sequence[float],
    budget: float,
    seed: int,
    trainer: Trainer | None = None,
    largest: int | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load the training items in batches of a `BucketSampler`, as `epoch_loader` loads others.

    It goes on from where the trainer stands, and what the data set draws is seeded batch by
    batch. All else goes to the DataLoader, `collate_fn` for one.

    >>> loader = bucketed_loader(range(4), [1.0, 1.0, 2.0, 2.0], 4.0, seed=0, collate_fn=sorted)
    >>> sorted(loader)
    [[0, 1], [2, 3]]
    """
    epoch, skip = position(trainer)
    replicas, rank = (trainer.world_size, trainer.global_rank) if trainer else (1, 0)
    shuffle = not overfits(trainer)
    sampler = BucketSampler(lengths, budget, seed, largest, shuffle, epoch, skip, replicas, rank)
    seeded = _SeededBatches(dataset, seed, rank)
    # a list of items is one "item" of the loader: Lightning rebuilds samplers, not batch samplers
    return _BucketLoader(seeded, None, sampler=sampler, generator=sampler.generator, **kwargs)


def sorted_loader(
    dataset: Dataset[Any],
    lengths: Sequence[float],
    budget: float,
    largest: int | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load all items once, from the shortest to the longest, in batches within the budget.

    >>> list(sorted_loader("abc", [2.0, 1.0, 1.0], 2.0, collate_fn="".join))
    ['bc', 'a']
    """
    batches = BucketSampler(lengths, budget, 0, largest, shuffle=False).batches(0)
    return DataLoader(_Batches(dataset, batches), batch_size=None, **kwargs)
