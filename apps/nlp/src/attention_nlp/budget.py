"""Train within a budget of time or steps, as Crammed BERT does: learning rate, batch size, end.

Geiping and Goldstein 2023, https://arxiv.org/abs/2212.14034. All three depend on the progress p in
[0, 1], the used fraction of the budget.
"""

import math
import re
import time
from typing import Any

from experiment_kit.errors import UserError
from lightning.pytorch import Callback, LightningModule, Trainer

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(budget: str) -> float:
    """Parse a time in seconds; ValueError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", budget.strip())
    if match is None or not float(match[1]):
        raise ValueError(f'a budget is a time such as "24h", "90m" or "30s", got {budget!r}')
    return float(match[1]) * _UNITS[match[2]]


def triangle_factor(p: float, start: float, peak: float) -> float:
    r"""Return the factor of the learning rate: from `start` up to 1 at `peak`, then down to 0.

    .. math:: \min(s + p (1 - s) / k, \; (1 - p) / (1 - k)), \quad s = \mathrm{start},
        \; k = \mathrm{peak}

    >>> [triangle_factor(p, 0.25, 0.75) for p in (0.0, 0.75, 1.0)]
    [0.25, 1.0, 0.0]
    """
    return max(0.0, min(start + p * (1 - start) / peak, (1 - p) / (1 - peak)))


def batches_per_step(p: float, full: int, ramp: float) -> int:
    r"""Return the number of batches of a step: a line from 1 up to `full` at `ramp`.

    .. math:: \min(\lfloor p f / r \rfloor + 1, \; f)

    >>> [batches_per_step(p, 64, 0.6) for p in (0.0, 0.3, 0.6)]
    [1, 33, 64]
    """
    return full if p >= ramp else min(full, math.floor(p / ramp * full) + 1)


class AccumulationWindow(int):
    """A value of `trainer.accumulate_grad_batches` whose window may start at any batch.

    Lightning ends a step where `(batch_idx + 1) % accumulate_grad_batches == 0`, which counts from
    the first batch of the epoch, and divides the loss by the same number. It has no public way to
    change the window within an epoch, so the remainder is computed here from `start`.
    """

    start: int

    def __new__(cls, size: int, start: int) -> "AccumulationWindow":
        """Make a window of `size` batches from batch `start`."""
        window = super().__new__(cls, size)
        window.start = start
        return window

    def __rmod__(self, done: int) -> int:
        return (done - self.start) % int(self)


class Budget(Callback):
    """Raise and lower the learning rate, let batches grow, and stop, all within a budget.

    The progress is the used fraction of `time`, which includes validation and continues after a
    resume, or that of the trainer's `max_steps` or `max_epochs` if it is larger. The learning rate
    of the schedule is multiplied by `triangle_factor`. A step ends at the end of an epoch.

    Args:
        time: Time such as "24h" or "90m"; null counts steps alone, and depends on no clock.
        batch: Sequences of a step, reached by accumulating more and more batches.
        ramp: Progress at which the batch is full.
        start: Factor of the learning rate at the start.
        peak: Progress at which the factor is 1.
    """

    def __init__(
        self,
        time: str | None = "24h",
        batch: int = 8192,
        ramp: float = 0.6,
        start: float = 0.25,
        peak: float = 0.75,
    ) -> None:
        self.time_limit = None if time is None else parse_seconds(time)
        if batch < 1 or ramp < 0 or not 0 <= start <= 1 or not 0 < peak < 1:
            text = "a Budget needs batch >= 1, ramp >= 0, start in [0, 1] and peak in (0,"
            raise ValueError(f"{text} 1), got {batch}, {ramp}, {start} and {peak}")
        self.batch, self.ramp, self.start, self.peak = batch, ramp, start, peak
        self.previous_seconds, self.step_end = 0.0, -1
        self.clock_start: float | None = None

    def state_dict(self) -> dict[str, float]:
        """Save the seconds used so far."""
        return {"seconds": self.used_seconds()}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Continue the clock."""
        self.previous_seconds = state_dict["seconds"]

    def used_seconds(self) -> float:
        """Return the time that the run has trained, over all its processes."""
        running = 0.0 if self.clock_start is None else time.monotonic() - self.clock_start
        return self.previous_seconds + running

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        sequences = data.batch_size * trainer.world_size
        if self.batch % sequences:
            text = f"the Budget's batch {self.batch} is not a multiple of"
            raise UserError(f"{text} {sequences}, data.batch_size on {trainer.world_size} devices")
        if trainer.accumulate_grad_batches != 1:
            raise UserError("trainer.accumulate_grad_batches is set by Budget: leave it at 1")
        self.full, self.clock_start = self.batch // sequences, time.monotonic()

    def compute_progress(self, trainer: Trainer, batch: int) -> float:
        """Compute the used fraction of the budget before a batch of this epoch."""
        fractions = [0.0]
        if self.time_limit is not None:
            # one clock for all devices: they must agree on the end of a step
            seconds = trainer.strategy.broadcast(self.used_seconds())
            fractions.append(seconds / self.time_limit)
        if trainer.max_steps > 0:
            fractions.append(trainer.global_step / trainer.max_steps)
        length, epochs = trainer.num_training_batches, trainer.max_epochs or 0
        if epochs > 0 and length < math.inf:
            fractions.append((trainer.current_epoch + batch / length) / epochs)
        return min(1.0, max(fractions))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the number of batches and the learning rate at the start of a step."""
        if 0 < batch_idx < self.step_end:
            return
        p = self.compute_progress(trainer, batch_idx)
        left = trainer.num_training_batches - batch_idx
        size = int(min(batches_per_step(p, self.full, self.ramp), left))
        trainer.accumulate_grad_batches = AccumulationWindow(size, batch_idx)
        self.step_end = batch_idx + size
        factor = triangle_factor(p, self.start, self.peak)
        for config in trainer.lr_scheduler_configs:
            optimizer, rates = config.scheduler.optimizer, config.scheduler.get_last_lr()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        pl_module.log("train/batch", float(size * self.batch // self.full))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop between two steps if the budget is used up."""
        if batch_idx + 1 == self.step_end and self.compute_progress(trainer, batch_idx + 1) >= 1:
            trainer.should_stop = True
