"""Refuse callbacks of a user that would change what a result says, before training."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
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


def check_callbacks(callbacks: Sequence[Any], module: LightningModule) -> None:
    """Refuse callbacks whose effect no result would show, and two that would share a state."""
    found = {
        kind: reason for c in callbacks for kind, reason in _REFUSED.items() if isinstance(c, kind)
    }
    for c in callbacks:
        if isinstance(c, BackboneFinetuning) and not hasattr(module, "backbone"):
            found[BackboneFinetuning] = "the model has no attribute 'backbone'"
        if isinstance(c, ModelPruning) and not c._make_pruning_permanent:
            found[ModelPruning] = (
                "make_pruning_permanent must be true, for the weights that are tested"
            )
    for kind, reason in found.items():
        raise UserError(f"trainer.callbacks: {kind.__name__} is not supported: {reason}")
    keys = [c.state_key for c in callbacks if is_overridden("state_dict", c)]
    if double := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"trainer.callbacks: two of them watch the same: {double[0]}")
