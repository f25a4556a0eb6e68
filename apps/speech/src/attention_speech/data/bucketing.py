"""Batches of items of similar length, whose padded length is within a budget."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from experiment_kit.data.loaders import (
    EpochSampler,
    ResumableLoader,
    SeededDataset,
    derive_seed,
    find_position,
    is_overfitting,
)
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset

_SPREAD = 0.1  # items whose logarithms differ by less may swap places in an epoch


class BucketSampler(EpochSampler):
    """Batches of items of similar length, a pure function of lengths, seed and epoch.

    Items are sorted by length and cut into batches whose padded length is within the budget; the
    batches are shuffled and dealt out to the ranks as an `EpochSampler` does with items. An epoch
    sorts by l exp(u), u uniform in [0, 0.1), so that batches differ from epoch to epoch while
    their number and their sizes stay: the k-th item of an epoch is at most exp(0.1) times as long
    as the k-th item by length, and that bound is kept within the budget.

    Yields (epoch, position of the batch, items).
    """

    def __init__(
        self,
        lengths: Sequence[float],
        budget: float,
        seed: int,
        largest: int | None = None,
        shuffle: bool = True,
        **position: int,
    ) -> None:
        self.lengths, self.budget = torch.tensor(lengths, dtype=torch.float64), budget
        self.largest = largest or len(lengths)
        if not (len(lengths) and budget > 0 and self.lengths.min() > 0 and self.largest > 0):
            raise ValueError("lengths, their budget and the largest batch must be positive")
        bound = self.lengths.sort().values
        if shuffle:
            bound = (bound * math.exp(_SPREAD)).clamp(max=bound[-1].item())
        self.sizes = compute_batch_sizes(bound.tolist(), budget, self.largest)
        super().__init__(len(self.sizes), seed, shuffle, **position)

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
        batches = self.build_batches(self.epoch)
        for epoch, place, chosen in super().__iter__():
            yield epoch, place, batches[chosen]


def compute_batch_sizes(lengths: Sequence[float], budget: float, largest: int) -> list[int]:
    """Return batch sizes for ascending lengths, such that size times longest fits the budget."""
    sizes = [0]
    for length in lengths:
        if sizes[-1] and (sizes[-1] == largest or (sizes[-1] + 1) * length > budget):
            sizes.append(0)
        sizes[-1] += 1
    return sizes


def bucketed_loader(
    dataset: Dataset[Any],
    lengths: Sequence[float],
    budget: float,
    seed: int,
    trainer: Trainer | None = None,
    largest: int | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load training items in batches of a `BucketSampler`; else as `build_train_loader`."""
    shuffle = not is_overfitting(trainer)
    sampler = BucketSampler(lengths, budget, seed, largest, shuffle, **find_position(trainer))
    seeded = SeededDataset(dataset, seed, sampler.rank)
    # a list of items is one "item" of the loader: Lightning rebuilds samplers, not batch samplers
    return ResumableLoader(seeded, None, sampler=sampler, generator=sampler.generator, **kwargs)


def sorted_loader(
    dataset: Dataset[Any],
    lengths: Sequence[float],
    budget: float,
    largest: int | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load all items once, from the shortest to the longest, in batches within the budget."""
    sampler = BucketSampler(lengths, budget, 0, largest, shuffle=False)
    return DataLoader(SeededDataset(dataset, 0, 0), None, sampler=sampler, **kwargs)
