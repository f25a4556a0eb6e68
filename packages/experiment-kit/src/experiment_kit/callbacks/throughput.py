"""How fast a run goes and how much memory it takes."""

import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


def peak_memory() -> float:
    """Peak memory of this process in MiB: of the GPU where there is one, else resident.

    >>> peak_memory() > 1
    True
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Throughput(Callback):
    """Log training steps per second of each epoch (validation left out) and peak memory in MiB."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0  # here, since a resumed epoch has no start

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note when the step began."""
        self.began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step."""
        self.seconds += time.perf_counter() - self.began
        self.steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch, and start anew."""
        if self.steps:
            pl_module.log("speed/steps_per_second", self.steps / self.seconds, sync_dist=True)
            pl_module.log("memory/peak_mib", peak_memory(), sync_dist=True, reduce_fx="max")
        self.seconds, self.steps = 0.0, 0
