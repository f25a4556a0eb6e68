"""Refuse callbacks of a user that would change what a result says, before training."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities.model_helpers import is_overridden

from experiment_kit.errors import UserError

_REFUSED = {
    StochasticWeightAveraging: "it averages after the last validation, so that nothing chooses or"
    " tests the average: take WeightAveraging or EMAWeightAveraging",
    BatchSizeFinder: "its batch size would be in no config: give data.init_args.batch_size",
    LearningRateFinder: "its rate would be in no config: give model.optimizer.init_args.lr",
    SpikeDetection: "Lightning cannot load its state, so that a stopped run would not resume",
}
# arguments with which the tested weights are those that were validated, also after a resume
_PRUNING = {"make_pruning_permanent": True, "use_lottery_ticket_hypothesis": False}


def check_callbacks(callbacks: Sequence[Any], configs: Sequence[Any]) -> None:
    """Refuse callbacks whose effect no result would show, and two that would share a state."""
    for callback, config in zip(callbacks, configs, strict=True):
        reasons = [reason for kind, reason in _REFUSED.items() if isinstance(callback, kind)]
        if isinstance(callback, ModelPruning):
            given, wanted = config.init_args, _PRUNING.items()
            reasons += [f"{name} must be {value}" for name, value in wanted if given[name] != value]
        for reason in reasons:
            name = type(callback).__name__
            raise UserError(f"trainer.callbacks: {name} is not supported: {reason}")
    keys = [c.state_key for c in callbacks if is_overridden("state_dict", c)]
    if double := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"trainer.callbacks: two of them watch the same: {double[0]}")
