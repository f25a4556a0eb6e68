"""Training within a budget, as in Crammed BERT: its learning rate, its batch size, its end.

Geiping and Goldstein 2023, https://arxiv.org/abs/2212.14034. All three follow the progress p in
[0, 1], the share of the budget that is used up.
"""

import math
import re
import time
from typing import Any, Self

from experiment_kit.errors import UserError
from lightning.pytorch import Callback, LightningModule, Trainer

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(budget: str) -> float:
    """A time as it is said.

    Raises ValueError for what is none.

    >>> seconds("24h"), seconds("1.5m")
    (86400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", budget.strip())
    if found is None or not float(found[1]):
        raise ValueError(f'a budget is a time such as "24h", "90m" or "30s", got {budget!r}')
    return float(found[1]) * _UNITS[found[2]]


def triangle(p: float, start: float, peak: float) -> float:
    r"""The factor of the learning rate: a line from `start` up to 1 at `peak`, then down to 0.

    .. math:: \min(s + p (1 - s) / k, \; (1 - p) / (1 - k)), \quad s = \mathrm{start},
        \; k = \mathrm{peak}

    >>> triangle(0.0, 0.25, 0.75), triangle(0.75, 0.25, 0.75), triangle(1.0, 0.25, 0.75)
    (0.25, 1.0, 0.0)
    """
    return max(0.0, min(start + p * (1 - start) / peak, (1 - p) / (1 - peak)))


def batches(p: float, full: int, ramp: float) -> int:
    r"""How many batches make a step: a line from 1 up to `full` at `ramp`.

    .. math:: \min(\lfloor p f / r \rfloor + 1, \; f)

    >>> batches(0.0, 64, 0.6), batches(0.3, 64, 0.6), batches(0.6, 64, 0.6)
    (1, 33, 64)
    """
    return full if p >= ramp else min(full, math.floor(p / ramp * full) + 1)


class Window(int):
    """How many batches to accumulate, counted from the one that it began at instead of from 0.

    As `trainer.accumulate_grad_batches`, which Lightning divides the loss by, and the number of
    batches by: the rest is 0 where a window ends.

    >>> window = Window(3).beginning(4)
    >>> [done for done in range(5, 11) if done % window == 0]
    [7, 10]
    """

    start = 0

    def beginning(self, start: int) -> Self:
        """The same, from there."""
        self.start = start
        return self

    def __rmod__(self, done: int) -> int:
        return (done - self.start) % int(self)


class Budget(Callback):
    """Raise the learning rate and lower it, let batches grow, and stop, all within a budget.

    The progress is the share of the time, validation included, or that of the trainer's own
    `max_steps` or `max_epochs` where it is larger: short runs are measured by their steps, and
    depend on no clock. Without a `time` there are the steps alone. The time outlives a resume.

    The rate that the schedule gives is multiplied by `triangle`; `batch`, the number of sequences
    that make a step, is reached at `ramp` by accumulating ever more batches; a step ends with the
    epoch. Both change from step to step.

    Raises ValueError for numbers out of their range, and UserError where the batch of the data
    does not divide `batch`, or the trainer is told to accumulate too.

    >>> Budget("24h").limit
    86400.0
    """

    def __init__(
        self,
        time: str | None = "24h",
        batch: int = 8192,
        ramp: float = 0.6,
        start: float = 0.25,
        peak: float = 0.75,
    ) -> None:
        self.limit = None if time is None else seconds(time)
        if batch < 1 or ramp < 0 or not 0 <= start <= 1 or not 0 < peak < 1:
            raise ValueError(
                "a Budget has batch >= 1, ramp >= 0, start in [0, 1] and peak in (0, 1), got "
                f"{batch}, {ramp}, {start} and {peak}"
            )
        self.batch, self.ramp, self.start, self.peak = batch, ramp, start, peak
        self.spent, self.end = 0.0, -1
        self.began: float | None = None

    def state_dict(self) -> dict[str, float]:
        """The seconds spent so far."""
        return {"seconds": self.seconds()}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from there."""
        self.spent = state_dict["seconds"]

    def seconds(self) -> float:
        """How long the run has trained, over all its processes."""
        return self.spent + (0.0 if self.began is None else time.monotonic() - self.began)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        together = data.batch_size * trainer.world_size
        if self.batch % together:
            raise UserError(
                f"the Budget's batch {self.batch} is no multiple of {together}, data.batch_size "
                f"on {trainer.world_size} devices"
            )
        if trainer.accumulate_grad_batches != 1:
            raise UserError("trainer.accumulate_grad_batches is the Budget's: leave it at 1")
        self.full, self.began = self.batch // together, time.monotonic()

    def progress(self, trainer: Trainer, batch: int) -> float:
        """The share of the budget that is used up before a batch of this epoch."""
        parts = [0.0]
        if self.limit is not None:
            # one clock for all devices: they must agree on when a step ends
            parts.append(trainer.strategy.broadcast(self.seconds()) / self.limit)
        if trainer.max_steps > 0:
            parts.append(trainer.global_step / trainer.max_steps)
        length, epochs = trainer.num_training_batches, trainer.max_epochs or 0
        if epochs > 0 and length < math.inf:
            parts.append((trainer.current_epoch + batch / length) / epochs)
        return min(1.0, max(parts))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step: choose its batches and its learning rate."""
        if 0 < batch_idx < self.end:
            return
        p = self.progress(trainer, batch_idx)
        left = trainer.num_training_batches - batch_idx
        size = int(min(batches(p, self.full, self.ramp), left))
        trainer.accumulate_grad_batches = Window(size).beginning(batch_idx)
        self.end = batch_idx + size
        factor = triangle(p, self.start, self.peak)
        for config in trainer.lr_scheduler_configs:
            optimizer, rates = config.scheduler.optimizer, config.scheduler.get_last_lr()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        pl_module.log("train/batch", float(size * self.batch // self.full))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop where the budget is used up, between two steps."""
        if batch_idx + 1 == self.end and self.progress(trainer, batch_idx + 1) >= 1:
            trainer.should_stop = True
