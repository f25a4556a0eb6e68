"""Training batches whose order and random draws seed and epoch decide, also after a resume."""

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, Dataset, Sampler

from experiment_kit.errors import UserError

_ROUND = 256  # of RASampler


class EpochSampler(Sampler[int]):
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

    >>> loader = epoch_loader(range(5), batch_size=2, seed=0, shuffle=False)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """
    epoch, batches = position(trainer)
    replicas, rank = (trainer.world_size, trainer.global_rank) if trainer else (1, 0)
    size, skip = len(dataset), batches * batch_size  # type: ignore[arg-type]
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


def _check(name: str, value: int, low: int, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def mix(*key: object) -> int:
    """A seed of 63 bits for a key, whatever it is made of."""
    # seed + epoch, as in torch's DistributedSampler, gives seed 1 the orders of seed 0
    return random.Random(repr(key)).getrandbits(63)
