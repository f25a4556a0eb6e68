"""Randomness that survives interruption: each step's draws are a function of (seed, step, rank)."""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer


def derive(*key: int) -> int:
    """A 32-bit seed from whole numbers, unrelated for neighbouring keys.

    >>> derive(0, 1) != derive(1, 0)
    True
    """
    digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


class StepSeed(Callback):
    """Reseed torch, numpy and random before every training step.

    Dropout and augmentation then do not depend on what ran before: a resumed run draws what the
    uninterrupted one drew, and monitors may draw as they like.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed by the number of batches seen so far, over all epochs."""
        step = trainer.fit_loop.epoch_loop.total_batch_idx
        seed = derive(self.seed, step, trainer.global_rank)
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 -- timm's Mixup draws from numpy's global generator
        random.seed(seed)
