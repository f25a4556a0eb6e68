"""How long training and testing take, for the papers' tables of running times."""

import time
from statistics import fmean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from experiment_kit.callbacks.spectral import SpectralMonitor


class Times(Callback):
    """Time each epoch of training, and the newest pass over the test set, in seconds.

    An epoch is counted from its start to its end without validation, what is saved after it, and
    the spectral monitor; one that began in another process is left out. Loading is counted.
    """

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self.test: float | None = None
        self.began: float | None = None  # a resumed epoch has no start
        self.paused: float | None = None
        self.apart = 0.0

    def metrics(self) -> dict[str, float]:
        """Return `time/epoch`, the mean over epochs, and `time/test`, as far as they were timed.

        >>> Times().metrics()
        {}
        """
        found = {"time/epoch": fmean(self.epochs)} if self.epochs else {}
        return found if self.test is None else {**found, "time/test": self.test}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch."""
        self.began, self.paused = time.perf_counter(), None
        self.apart = -_monitored(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause."""
        self.paused = time.perf_counter()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Go on after a validation within the epoch."""
        self._go_on()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the epoch."""
        self._go_on()
        if self.began is not None:
            apart = self.apart + _monitored(trainer)
            self.epochs.append(time.perf_counter() - self.began - apart)
            self.began = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a pass."""
        self.began = time.perf_counter()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the pass: its metrics have been computed, so that nothing is under way."""
        assert self.began is not None
        self.test, self.began = time.perf_counter() - self.began, None

    def _go_on(self) -> None:
        if self.paused is not None:
            self.apart += time.perf_counter() - self.paused
            self.paused = None


def _monitored(trainer: Any) -> float:
    return sum(c.seconds for c in trainer.callbacks if isinstance(c, SpectralMonitor))
