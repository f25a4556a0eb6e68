"""Ending a run on request: a checkpoint, then the exit status that asks to be started again."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

EXIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again later


class GracefulStop(Callback):
    """On SIGTERM or SIGUSR1, save within `every` batches and leave with status 75.

    All ranks agree on the batch, so a signal to any one of them ends them all. Lightning's own
    handlers broadcast from within the handler, which hangs where another rank than 0 is
    signalled, and leave with status 0.
    """

    def __init__(
        self,
        directory: Path,
        every: int = 1,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    ) -> None:
        self.directory, self.every, self.signals = directory, every, signals
        self.asked = False
        self.previous: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handlers, after Lightning has installed its own."""
        self.previous = {number: signal.signal(number, self._ask) for number in self.signals}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the handlers back."""
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop where any rank was asked to."""
        if (batch_idx + 1) % self.every or not _settled(trainer, batch_idx):
            return
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            trainer.save_checkpoint(self.directory / f"step={trainer.global_step}.ckpt")
            trainer.strategy.barrier()
            raise SystemExit(EXIT_STATUS)


def _settled(trainer: Trainer, batch_idx: int) -> bool:
    # gradients that are still being accumulated are in no checkpoint
    window = trainer.accumulate_grad_batches
    return (batch_idx + 1) % window == 0 or batch_idx + 1 == trainer.num_training_batches
