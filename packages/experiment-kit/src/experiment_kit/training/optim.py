"""Optimizer groups, and the learning-rate schedules of the papers.

In all equations t is the step from 0, T the number of steps, η the optimizer's own rate, and w the
warm-up, given as a fraction of the run if it is below 1 and else as a number of steps.
"""

import inspect
import math
from abc import ABC
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar

import torch
from attention_core.checks import check_nonnegative
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from experiment_kit.errors import UserError, convert_user_errors

Config = dict[str, Any]  # Lightning's lr_scheduler_config


def param_groups_weight_decay(
    model: nn.Module, weight_decay: float, exempt: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Split the trainable parameters into those that decay and those that do not.

    Parameters of at most one dimension do not decay, nor do names that end in ``.bias`` or that
    end in or match (``*``) an entry of ``exempt``. One exempt name suffices for a shared parameter.
    """
    patterns = (".bias", *exempt)
    exempted: dict[nn.Parameter, bool] = defaultdict(bool)
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            found = any(name.endswith(end) or fnmatchcase(name, end) for end in patterns)
            exempted[p] |= p.ndim <= 1 or found
    decayed = [p for p, is_exempt in exempted.items() if not is_exempt]
    others = [p for p, is_exempt in exempted.items() if is_exempt]
    groups = (decayed, weight_decay), (others, 0.0)
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def build_optimizer(factory: Callable[[Any], Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """Build the optimizer; raises UserError for one that this training cannot use."""
    with convert_user_errors(AttributeError, TypeError, ValueError, prefix="model.optimizer: "):
        optimizer = factory(groups)
    if isinstance(optimizer, LBFGS | SparseAdam):
        name = type(optimizer).__name__
        raise UserError(f"model.optimizer: {name} needs another training loop; name another class")
    for group in optimizer.param_groups:
        if not 0 < (rate := group.get("lr", 1.0)) < math.inf:
            raise UserError(f"model.optimizer.lr must be above 0 and finite, got {float(rate)}")
    return optimizer


def check_optimizer(factory: Callable[[Any], Optimizer], weight_decay: float) -> None:
    """Raise UserError for an optimizer that this training cannot use, or that decays otherwise."""
    groups = ({"params": [nn.Parameter(torch.zeros(1))], "weight_decay": 0.0} for _ in range(2))
    build_optimizer(factory, list(groups))
    # a command line gives the decay of its optimizer to the model: see `parsing.py`
    if isinstance(factory, partial) and inspect.isclass(factory.func):
        own = factory.keywords.get("weight_decay", weight_decay)
        if own != weight_decay:
            raise UserError(f"weight_decay={own} of the optimizer is not that of the model: add it")


def build_lr_scheduler(schedule: "Schedule", optimizer: Optimizer, trainer: Any) -> Config:
    """Build the scheduler of a run; raise UserError for a schedule that does not fit into it."""
    with convert_user_errors(ValueError, prefix="trainer: "):  # val_check_interval beyond an epoch
        steps = trainer.estimated_stepping_batches
    if not 0 < steps < math.inf:
        raise UserError("trainer: set max_steps above 0, or max_epochs where the data has a length")
    if trainer.num_training_batches == math.inf:  # not counted yet with max_epochs=-1
        trainer.fit_loop.setup_data()
    length = trainer.num_training_batches / trainer.accumulate_grad_batches
    per_epoch = math.ceil(length) if length < math.inf else int(steps)  # endless: one epoch
    with convert_user_errors(NotImplementedError, ValueError, prefix="model.schedule: "):
        return schedule(optimizer, int(steps), per_epoch)


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):  # noqa: B024 -- of a dataclass that is no ABC, jsonargparse takes no subclass
    """A function of the step that gives the learning rate; call it in `configure_optimizers`.

    A subclass defines `compute_rate`, or `build_scheduler` for a scheduler of another library.
    """

    warmup: float = 0.0
    interval: ClassVar[str] = "step"
    monitor: ClassVar[str | None] = None  # the metric of ReduceLROnPlateau

    def __post_init__(self) -> None:
        numbers = {name: v for name, v in vars(self).items() if type(v) in (int, float)}
        warmup = numbers.pop("warmup")  # its end is checked against the length of the run
        if not 0 <= warmup < math.inf or (warmup >= 1 and warmup % 1):
            allowed = "a fraction below 1 or a whole number"
            raise ValueError(f"model.schedule.warmup must be {allowed}, got {warmup}")
        check_nonnegative("model.schedule", **numbers)

    def __call__(self, optimizer: Optimizer, total_steps: int, steps_per_epoch: int) -> Config:
        """Return the scheduler and its interval; both counts are of optimizer steps."""
        T = math.ceil(total_steps / steps_per_epoch) if self.interval == "epoch" else total_steps
        w = round(self.warmup * T) if self.warmup < 1 else int(self.warmup)
        if w >= T:
            raise ValueError(f"warmup must be shorter than the run, which is {T}, not {w}")
        scheduler = self.build_scheduler(optimizer, T, w, steps_per_epoch)
        return {"scheduler": scheduler, "interval": self.interval, "monitor": self.monitor}

    def build_scheduler(
        self, optimizer: Optimizer, T: int, w: int, steps_per_epoch: int
    ) -> LRScheduler:
        """Build the scheduler that follows `compute_rate` in each parameter group."""

        # timm's layer decay writes lr_scale into the groups; torch's schedulers ignore it
        def build_factor(group: dict[str, Any]) -> Callable[[int], float]:
            peak, scale = group["lr"], group.get("lr_scale", 1.0)
            return lambda t: (
                scale * self.compute_rate(self.find_step(t, w, steps_per_epoch), T, w, peak) / peak
            )

        return LambdaLR(optimizer, [build_factor(group) for group in optimizer.param_groups])

    def find_step(self, t: int, w: int, steps_per_epoch: int) -> int:
        """Return the step whose rate step t uses: t itself."""
        return t

    def compute_rate(self, t: int, T: int, w: int, peak: float) -> float:
        """Return the learning rate of step t of T with w steps of warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must define it, or build_scheduler")


class ConstantSchedule(Schedule):
    """Warm-up ``η t / w``, then η."""

    def compute_rate(self, t: int, T: int, w: int, peak: float) -> float:
        """Return the rate."""
        return peak * t / w if t < w else peak


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(Schedule):
    """Warm-up, then ``η_min + (η - η_min) (1 - x)`` with ``x = (t - w) / (T - w)``."""

    warmup_lr: float = 0.0
    min_lr: float = 0.0

    def compute_rate(self, t: int, T: int, w: int, peak: float) -> float:
        """Return the rate."""
        if t < w:
            return self.warmup_lr + (peak - self.warmup_lr) * t / w
        return self.min_lr + (peak - self.min_lr) * self._compute_factor(t, T, w)

    def _compute_factor(self, t: int, T: int, w: int) -> float:
        # Lightning steps once more after the last update
        return 1 - min(1.0, (t - w) / (T - w))


@dataclass(frozen=True, kw_only=True)
class CosineSchedule(LinearSchedule):
    """Warm-up, then ``η_min + (η - η_min) (1 + cos πx) / 2``, by step.

    With `warmup_prefix` false the cosine counts the warm-up too, ``x = t / T``, as timm's does in
    the recipe of Swin. With `staircase` the rate changes once an epoch after the warm-up.
    """

    warmup_prefix: bool = True
    staircase: bool | None = None

    def find_step(self, t: int, w: int, steps_per_epoch: int) -> int:
        """Return the step whose rate step t uses: with `staircase`, the first of its epoch."""
        return t - (t - w) % steps_per_epoch if self.staircase and t > w else t

    def _compute_factor(self, t: int, T: int, w: int) -> float:
        start = w if self.warmup_prefix else 0
        return (1 + math.cos(math.pi * min(1.0, (t - start) / (T - start)))) / 2


@dataclass(frozen=True, kw_only=True)
class StepSchedule(Schedule):
    """η times `factor` for each of the `milestones`, shares of the run, that t has reached.

    https://arxiv.org/abs/1512.03385, section 3.4, with milestones in place of plateaus.
    """

    milestones: Sequence[float] = (1 / 3, 2 / 3)
    factor: float = 0.1

    def compute_rate(self, t: int, T: int, w: int, peak: float) -> float:
        """Return the rate."""
        reached = sum(t >= round(share * T) for share in self.milestones)
        return peak * self.factor**reached * (t / w if t < w else 1)


@dataclass(frozen=True, kw_only=True)
class NoamSchedule(Schedule):
    """``factor η d^-½ min((t + 1)^-½, (t + 1) w^-1½)``; without ``d_model`` the peak is η.

    https://arxiv.org/abs/1706.03762, equation 3, where η = 1; speechbrain's recipes give the peak.
    """

    d_model: int | None
    factor: float = 1.0

    def compute_rate(self, t: int, T: int, w: int, peak: float) -> float:
        """Return the rate."""
        w = w or 1  # a fraction of few steps may be less than one
        scale = self.factor * peak / math.sqrt(self.d_model or 1 / w)
        return scale * min(1 / math.sqrt(t + 1), (t + 1) / (w * math.sqrt(w)))


@dataclass(frozen=True, kw_only=True)
class OneCycleSchedule(Schedule):
    """Straight lines from η / 25 up to η at step w - 1 and down to η / 25 / 10⁴; β₁ the other way.

    The schedule of the long-range-arena code that AGF started from:
    https://github.com/mlpen/Nystromformer
    """

    start_divisor: float = 25.0
    end_divisor: float = 1e4

    def build_scheduler(
        self, optimizer: Optimizer, T: int, w: int, steps_per_epoch: int
    ) -> LRScheduler:
        """Build torch's scheduler."""
        if w == 1:  # torch would divide by the length of the ramp, w - 1
            raise ValueError("warmup of OneCycleSchedule must be 0 steps or at least 2, not 1")
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
class EpochCosineSchedule(LinearSchedule):
    """timm's cosine by epoch as DeiT steps it; warm-up in epochs, which the cosine counts too.

    DeiT calls ``step(epoch)`` after the epoch: all lags by one, and epochs 0 and 1 share the
    start of the warm-up. https://github.com/facebookresearch/deit/blob/main/main.py
    """

    warmup: float = 5.0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    interval: ClassVar[str] = "epoch"

    def find_step(self, t: int, w: int, steps_per_epoch: int) -> int:
        """Return the epoch before."""
        return max(0, t - 1)

    def _compute_factor(self, t: int, T: int, w: int) -> float:
        return (1 + math.cos(math.pi * t / T)) / 2
