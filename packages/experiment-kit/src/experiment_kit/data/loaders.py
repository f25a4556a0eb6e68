"""Loaders whose order and random draws depend on seed and epoch alone, also after a resume."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, Dataset

from experiment_kit.data.samplers import BucketSampler, PositionSampler, derive_seed
from experiment_kit.errors import UserError


def build_train_loader(
    dataset: Dataset[Any],
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    shuffle: bool = True,
    repeats: int = 1,
    drop_last: bool = False,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load training items, from the trainer's position if it resumes in mid-epoch.

    Call it in ``train_dataloader()``; other arguments go to the DataLoader. What the data set
    draws at random is seeded for each batch: neither a resume nor the number of workers changes it.
    ``drop_last`` keeps the only batch of an epoch. A trainer that overfits some batches gets the
    same items, in order, in every epoch.
    """
    position = find_position(trainer)
    position["skip"] *= batch_size
    size: int = len(dataset)  # type: ignore[arg-type]
    shuffle = shuffle and not is_overfitting(trainer)
    sampler = PositionSampler(size, seed, shuffle, repeats=repeats, **position)
    return ResumableLoader(
        SeededDataset(dataset, seed, sampler.rank),
        batch_size,
        sampler=sampler,
        generator=sampler.generator,
        drop_last=drop_last and len(sampler) >= batch_size,
        **kwargs,
    )


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
    seeded = _SeededBatches(dataset, seed, sampler.rank)
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
    batches = BucketSampler(lengths, budget, 0, largest, shuffle=False).build_batches(0)
    return DataLoader(_BatchDataset(dataset, batches), batch_size=None, **kwargs)


def find_position(trainer: Trainer | None) -> dict[str, int]:
    """Return the epoch that comes next, the batches of it to skip, and the place among the ranks.

    The callback `RestoreLoops` has restored the trainer's position.
    """
    if trainer is None:
        return {"epoch": 0, "skip": 0}
    loop = trainer.fit_loop
    batches: Any = loop.epoch_loop.batch_progress
    # not `ready`, which counts a batch that an exception interrupted, nor `completed`, which
    # does not yet count the batch in whose on_train_batch_end the checkpoint was made
    epoch: int = loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    skip = batches.current.processed if loop.restarting else 0
    if loop.restarting and batches.is_last_batch:
        epoch, skip = epoch + 1, 0
    ranks = {"num_replicas": trainer.world_size, "rank": trainer.global_rank}
    return {"epoch": epoch, "skip": skip, **ranks}


def is_overfitting(trainer: Any) -> bool:
    """Return True if a trainer sees only a few batches, the same in every epoch."""
    return trainer is not None and trainer.overfit_batches > 0


class SeededDataset(Dataset[Any]):
    """A data set whose random draws for a batch depend on seed, rank, epoch and position."""

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int) -> None:
        self.dataset, self.seed, self.rank = dataset, seed, rank

    def __getitems__(self, places: list[tuple[int, int, int]]) -> list[Any]:
        epoch, place, _ = places[0]
        seed = derive_seed("draws", self.seed, self.rank, epoch, place)
        with isolate_rng(include_cuda=False):  # without workers, this is the trainer's own state
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- timm draws from the global generator
            torch.random.default_generator.manual_seed(seed)
            return [self.dataset[item] for _, _, item in places]


class _SeededBatches(SeededDataset):
    def __getitem__(self, batch: tuple[int, int, list[int]]) -> list[Any]:
        epoch, place, items = batch
        return self.__getitems__([(epoch, place, item) for item in items])


class _BatchDataset(Dataset[Any]):
    def __init__(self, dataset: Dataset[Any], batches: list[list[int]]) -> None:
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> list[Any]:
        return [self.dataset[item] for item in self.batches[place]]


class ResumableLoader(DataLoader[Any]):
    """A loader that can resume in mid-epoch; its state is what must not change until then."""

    def state_dict(self) -> dict[str, Any]:
        """Return the settings that give a saved position its meaning."""
        sampler: Any = self.sampler
        return {
            "budget of a batch": getattr(sampler, "budget", 1),
            "batch size": self.batch_size or 0,
            "data set size": sampler.size,
            "seed": sampler.seed,
            "number of devices": sampler.num_replicas,
            "number of repeats": sampler.repeats,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError if a setting differs from the checkpoint's."""
        for name, now in self.state_dict().items():
            # older checkpoints do not contain all of them
            if (saved := state.get(name, 1)) != now:
                raise UserError(
                    f"cannot resume in mid-epoch with another {name} ({now}) than the"
                    f" checkpoint's ({saved}): give that one, or an epoch-end checkpoint"
                )
