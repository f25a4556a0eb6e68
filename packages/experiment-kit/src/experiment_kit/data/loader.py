"""Training batches whose order and random draws seed and epoch decide, also after a resume."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, Dataset

from experiment_kit.data.sampler import EpochSampler, mix
from experiment_kit.errors import UserError


class _Places(EpochSampler):
    """The same items, each with its epoch and its place in it."""

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self.epoch, self.skip
        return ((epoch, place, item) for place, item in enumerate(super().__iter__(), start))


class Seeded(Dataset[Any]):
    """A data set whose random draws for a batch are a function of seed, rank, epoch and place."""

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int) -> None:
        self.dataset, self.seed, self.rank = dataset, seed, rank

    def __getitems__(self, places: list[tuple[int, int, int]]) -> list[Any]:
        epoch, place, _ = places[0]
        seed = mix("draws", self.seed, self.rank, epoch, place)
        with isolate_rng(include_cuda=False):  # without workers, this is the trainer's own state
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- timm draws from the global generator
            torch.random.default_generator.manual_seed(seed)
            return [self.dataset[item] for _, _, item in places]


def epoch_loader(
    dataset: Dataset[Any],
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    shuffle: bool = True,
    repeats: int = 1,
    drop_last: bool = False,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Load the training items, from where the trainer stands if it resumes in mid-epoch.

    To be called in ``train_dataloader()``; all else goes to the DataLoader. What the data set
    draws at random (of Python, numpy and torch, on the CPU) is seeded for each batch: neither a
    resume nor the number of workers changes it. ``drop_last`` keeps the only batch of an epoch.
    A trainer that overfits some batches is given the same items, in order, in every epoch.

    >>> loader = epoch_loader(range(5), batch_size=2, seed=0, shuffle=False)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """
    epoch, batches = position(trainer)
    replicas, rank = (trainer.world_size, trainer.global_rank) if trainer else (1, 0)
    size, skip = len(dataset), batches * batch_size  # type: ignore[arg-type]
    shuffle = shuffle and not overfits(trainer)
    sampler = _Places(size, seed, shuffle, epoch, skip, replicas, rank, repeats)
    return EpochLoader(
        Seeded(dataset, seed, rank),
        batch_size,
        sampler=sampler,
        generator=sampler.generator,
        drop_last=drop_last and len(sampler) >= batch_size,
        **kwargs,
    )


class EpochLoader(DataLoader[Any]):
    """Tells Lightning that it can resume in mid-epoch, and what must not have changed then."""

    def state_dict(self) -> dict[str, Any]:
        """What gives a position its meaning."""
        sampler = self.sampler
        assert isinstance(sampler, EpochSampler)
        return {
            "batch size": self.batch_size or 0,
            "data set size": sampler.size,
            "seed": sampler.seed,
            "number of devices": sampler.num_replicas,
            "number of repeats": sampler.repeats,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError where that is another than the checkpoint's."""
        for name, now in self.state_dict().items():
            # a checkpoint from before there were repeats says nothing of them
            if (saved := state.get(name, 1)) != now:
                raise UserError(
                    f"cannot resume in mid-epoch with another {name} ({now}) than the"
                    f" checkpoint's ({saved}): give that one, or an epoch-end checkpoint"
                )


def overfits(trainer: Any) -> bool:
    """Whether a trainer sees a few batches alone, which must then be the same in every epoch."""
    return trainer is not None and trainer.overfit_batches > 0


def position(trainer: Trainer | None) -> tuple[int, int]:
    """Find the epoch that comes next, and how many of its batches are done."""
    if trainer is None:
        return 0, 0
    # configure_optimizers may ask for estimated_stepping_batches, which builds the loader before
    # the loops are restored: restore them now, and once only
    trainer._checkpoint_connector.restore_loops()
    trainer._checkpoint_connector._loaded_checkpoint.pop("loops", None)
    loop = trainer.fit_loop
    epochs: Any = loop.epoch_progress.current
    batches: Any = loop.epoch_loop.batch_progress
    if epochs.processed == epochs.ready:
        # Between epochs there is nothing to restart. Lightning 2.6 says otherwise if max_steps
        # is set: it would train a stray batch and then leave out an epoch.
        loop._restarting = loop.epoch_loop.restarting = False
    if not loop.restarting:
        return epochs.processed, 0
    if batches.is_last_batch:
        return epochs.processed + 1, 0
    # not `ready`, which counts a batch that an exception broke off, nor `completed`, which
    # does not yet count the batch in whose on_train_batch_end the checkpoint was made
    return epochs.processed, batches.current.processed
