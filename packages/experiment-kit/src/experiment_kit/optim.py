"""Optimiser groups, and the learning-rate schedules of the papers, chosen by class path.

In all equations t is the step from 0, T the number of steps, η the optimiser's own rate, and w the
warm-up, given as a fraction of the run if it is below 1 and else as a number of steps.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from experiment_kit.errors import UserError
from experiment_kit.groups import decay_groups as decay_groups

Config = dict[str, Any]  # Lightning's lr_scheduler_config


def _warmup_length(warmup: float, total: int) -> int:
    if not 1 <= total < math.inf:  # Lightning estimates inf when nothing bounds the run
        raise ValueError(f"total_steps must be positive and finite, not {total}")
    if warmup < 0 or (warmup >= 1 and warmup != int(warmup)):
        raise ValueError(f"warmup must be a fraction below 1 or a whole number, not {warmup}")
    length = round(warmup * total) if warmup < 1 else int(warmup)
    if length >= total:
        raise ValueError(f"warmup must be shorter than the run, which is {total}, not {length}")
    return length


def scheduled(schedule: "Schedule", optimizer: Optimizer, trainer: Any) -> Config:
    """The schedule of a run, from how long its trainer says that it is.

    Raises a UserError where nothing bounds the run, and for a schedule that does not fit into it.
    """
    steps = trainer.estimated_stepping_batches
    if not 0 < steps < math.inf:
        raise UserError("trainer: max_epochs or max_steps must bound the run")
    epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    try:
        return schedule(optimizer, int(steps), epoch)
    except ValueError as error:
        raise UserError(f"model.schedule: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """How the learning rate changes in a run, for ``configure_optimizers`` of Lightning.

    A warm-up that is negative or not shorter than the run raises a ValueError.
    """

    warmup: float = 0.0
    interval: ClassVar[str] = "step"

    def __call__(self, optimizer: Optimizer, total_steps: int, steps_per_epoch: int) -> Config:
        """Give the scheduler and when to step it; both counts are of optimiser steps."""
        per_epoch = self.interval == "epoch"
        T = math.ceil(total_steps / steps_per_epoch) if per_epoch else total_steps
        scheduler = self._build(optimizer, T, _warmup_length(self.warmup, T))
        return {"scheduler": scheduler, "interval": self.interval}

    @abstractmethod
    def _build(self, optimizer: Optimizer, T: int, w: int) -> LRScheduler: ...


class _ClosedForm(Schedule):
    @abstractmethod
    def _rate(self, t: int, T: int, w: int, peak: float) -> float: ...

    def _build(self, optimizer: Optimizer, T: int, w: int) -> LRScheduler:
        # timm's layer decay writes lr_scale into the groups; torch's schedulers ignore it
        def factor(group: dict[str, Any]) -> Callable[[int], float]:
            peak, scale = group["lr"], group.get("lr_scale", 1.0)
            return lambda t: scale * self._rate(t, T, w, peak) / peak

        return LambdaLR(optimizer, [factor(group) for group in optimizer.param_groups])


class Constant(_ClosedForm):
    """Warm-up ``η t / w``, then η."""

    def _rate(self, t: int, T: int, w: int, peak: float) -> float:
        return peak * t / w if t < w else peak


@dataclass(frozen=True, kw_only=True)
class _Decay(_ClosedForm):
    warmup_lr: float = 0.0
    min_lr: float = 0.0

    @abstractmethod
    def _shape(self, x: float) -> float: ...

    def _rate(self, t: int, T: int, w: int, peak: float) -> float:
        if t < w:
            return self.warmup_lr + (peak - self.warmup_lr) * t / w
        return self.min_lr + (peak - self.min_lr) * self._shape(self._done(t, T, w))

    def _done(self, t: int, T: int, w: int) -> float:
        return min(1.0, (t - w) / (T - w))  # Lightning steps once more after the last update


class Linear(_Decay):
    """Warm-up, then ``η_min + (η - η_min) (1 - x)`` with ``x = (t - w) / (T - w)``."""

    def _shape(self, x: float) -> float:
        return 1 - x


@dataclass(frozen=True, kw_only=True)
class Polynomial(_Decay):
    """Warm-up, then ``η_min + (η - η_min) (1 - x)^power``."""

    power: float = 1.0

    def _shape(self, x: float) -> float:
        return math.pow(1 - x, self.power)


@dataclass(frozen=True, kw_only=True)
class Cosine(_Decay):
    """Warm-up, then ``η_min + (η - η_min) (1 + cos πx) / 2``, by step.

    `whole` counts the warm-up, ``x = t / T``, as timm's cosine in Swin's recipe does.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    >>> config = Cosine(warmup_lr=0.1, warmup=2)(optimizer, total_steps=9, steps_per_epoch=3)
    >>> config["interval"], config["scheduler"].get_last_lr()
    ('step', [0.1])
    """

    whole: bool = False

    def _shape(self, x: float) -> float:
        return (1 + math.cos(math.pi * x)) / 2

    def _done(self, t: int, T: int, w: int) -> float:
        return super()._done(t, T, 0 if self.whole else w)


@dataclass(frozen=True, kw_only=True)
class Noam(_ClosedForm):
    """``factor η d^-½ min((t + 1)^-½, (t + 1) w^-1½)``; without ``d_model`` the peak is η.

    https://arxiv.org/abs/1706.03762, equation 3, where η = 1; speechbrain's recipes give the peak.
    """

    d_model: int | None
    factor: float = 1.0

    def _rate(self, t: int, T: int, w: int, peak: float) -> float:
        if self.warmup == 0:
            raise ValueError("warmup of Noam must be at least one step, not 0")
        w = w or 1  # a part of few steps may be less than one
        scale = self.factor * peak / math.sqrt(self.d_model or 1 / w)
        return scale * min(1 / math.sqrt(t + 1), (t + 1) / (w * math.sqrt(w)))


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Straight lines from η / 25 up to η at step w - 1 and down to η / 25 / 10⁴; β₁ the other way.

    The schedule of the long-range-arena code that AGF started from:
    https://github.com/mlpen/Nystromformer
    """

    start_divisor: float = 25.0
    end_divisor: float = 1e4

    def _build(self, optimizer: Optimizer, T: int, w: int) -> LRScheduler:
        if w == 1:  # torch would divide by the length of the ramp, w - 1
            raise ValueError("warmup of OneCycle must be no step or at least two, not one")
        return OneCycleLR(
            optimizer,
            max_lr=[g["lr"] * g.get("lr_scale", 1.0) for g in optimizer.param_groups],
            total_steps=T,
            pct_start=w / T,
            anneal_strategy="linear",
            div_factor=self.start_divisor,
            final_div_factor=self.end_divisor,
        )


@dataclass(frozen=True, kw_only=True)
class EpochCosine(Schedule):
    """timm's cosine by epoch as DeiT steps it; warm-up in epochs, which the cosine counts too.

    DeiT calls ``step(epoch)`` after the epoch: all lags by one, and epochs 0 and 1 share the
    start of the warm-up. https://github.com/facebookresearch/deit/blob/main/main.py
    """

    warmup: float = 5.0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    interval: ClassVar[str] = "epoch"

    def _build(self, optimizer: Optimizer, T: int, w: int) -> LRScheduler:
        try:
            from timm.scheduler.cosine_lr import CosineLRScheduler
        except ImportError as error:
            text = "EpochCosine needs timm: pip install 'experiment-kit[schedules]'"
            raise UserError(text) from error
        cosine = CosineLRScheduler(
            optimizer, T, lr_min=self.min_lr, warmup_t=w, warmup_lr_init=self.warmup_lr
        )
        return _Lagging(optimizer, cosine)


class _Lagging(LRScheduler):
    """A stateless timm scheduler behind torch's interface, so that Lightning can step it."""

    def __init__(self, optimizer: Optimizer, inner: Any) -> None:
        self.inner = inner
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        self.inner.step(max(0, self.last_epoch - 1))
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "inner"}
