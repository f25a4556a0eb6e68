"""Loaders and samplers whose order and draws depend on seed, epoch and rank alone."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attention_core.checks import check_sizes
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from experiment_kit.errors import UserError

_ROUND = 256  # RASampler's


def derive_seed(*key: object) -> int:
    """Return a seed of 63 bits for a key of any objects with a stable repr."""
    # seed + epoch, as in torch's DistributedSampler, would give seed 1 the orders of seed 0
    return random.Random(repr(key)).getrandbits(63)


@dataclass(eq=False)
class EpochSampler(SequentialSampler):
    """The items of one rank in an order by seed and epoch, each as (epoch, position, item).

    The order is dealt out to the ranks in turn and wraps around, so that all ranks have the same
    number of items and none is left out (a few are seen twice). ``skip`` items are left out of
    the first iteration only, while the length stays that of a whole epoch. The DataLoader draws
    the seeds of its workers from ``generator``.

    With ``repeats`` above 1 (repeated augmentation, arXiv:1901.09335), each item of the order is
    repeated that often before it is dealt out. An epoch remains as long as the data, cut to a
    multiple of 256, so that it contains only a part of the items. That is the rule of DeiT:
    https://github.com/facebookresearch/deit/blob/main/samplers.py

    It subclasses SequentialSampler, which Lightning does not replace where it overfits batches.
    """

    size: int
    seed: int
    shuffle: bool = True
    epoch: int = 0
    skip: int = 0
    num_replicas: int = 1
    rank: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        check_sizes("sampler", size=self.size, repeats=self.repeats)
        self.generator = torch.Generator()
        self.set_epoch(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch and so the order; forget a skip that was given for another epoch."""
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0
        self.generator.manual_seed(derive_seed("workers", self.seed, epoch, self.rank))

    def __len__(self) -> int:
        if self.repeats > 1 and self.size >= _ROUND:
            return self.size // _ROUND * _ROUND // self.num_replicas
        return math.ceil(self.size / self.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        order = torch.arange(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive_seed("order", self.seed, self.epoch))
            order = torch.randperm(self.size, generator=generator)
        mine = torch.arange(self.rank, len(self) * self.num_replicas, self.num_replicas)
        epoch, skip, self.skip = self.epoch, self.skip, 0
        items = order[mine // self.repeats % self.size].tolist()[skip:]
        return ((epoch, place, item) for place, item in enumerate(items, skip))


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
    sampler = EpochSampler(size, seed, shuffle, repeats=repeats, **position)
    return ResumableLoader(
        SeededDataset(dataset, seed, sampler.rank),
        batch_size,
        sampler=sampler,
        generator=sampler.generator,
        drop_last=drop_last and len(sampler) >= batch_size,
        **kwargs,
    )


def find_position(trainer: Trainer | None) -> dict[str, int]:
    """Return the epoch that comes next, its batches to skip, and the place among the ranks."""
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
        return self[epoch, place, [item for _, _, item in places]]

    def __getitem__(self, batch: tuple[int, int, list[int]]) -> list[Any]:
        epoch, place, items = batch
        seed = derive_seed("draws", self.seed, self.rank, epoch, place)
        with isolate_rng(include_cuda=False):  # without workers, this is the trainer's own state
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- timm draws from the global generator
            torch.random.default_generator.manual_seed(seed)
            return [self.dataset[item] for item in items]


class ResumableLoader(DataLoader[Any]):
    """A loader that can resume in mid-epoch; its state is what must not change until then."""

    def state_dict(self) -> dict[str, Any]:
        """Return the settings that give a saved position its meaning."""
        sampler: Any = self.sampler
        size = self.batch_size or sampler.budget
        return {"batch size": size, "number of devices": sampler.num_replicas}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError if a setting differs from the checkpoint's."""
        for name, now in self.state_dict().items():
            if (saved := state.get(name, now)) != now:
                raise UserError(
                    f"cannot resume in mid-epoch with another {name} ({now}) than the"
                    f" checkpoint's ({saved}): give that one, or an epoch-end checkpoint"
                )
