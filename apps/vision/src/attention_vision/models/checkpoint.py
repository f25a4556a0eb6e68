"""Weights from a file: timm's, the published ones of DeiT and CaiT, or those of a run."""

from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from timm.models import load_state_dict
from torch import Tensor, nn

_MECHANISMS = {"filter", "kernel", "tokens"}  # modules that a stock checkpoint lacks


def load_checkpoint(model: nn.Module, path: str, option: str = "model.checkpoint") -> None:
    """Load all weights of a file into a model; only those of a mechanism may be missing.

    Raises UserError, which names the `option`, for a file that is absent or no checkpoint, and for
    weights of another model, with the first name that does not fit.
    """
    if not Path(path).is_file():
        raise UserError(f"{option} {path} does not exist")
    try:
        weights = load_state_dict(path, use_ema=False, device="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive makes the reader raise
        raise UserError(f"{option} {path} is not a checkpoint that can be read") from error
    of_run = {name[6:]: w for name, w in weights.items() if name.startswith("model.")}
    weights = of_run or weights
    if reason := _find_mismatch(model.state_dict(), weights):
        raise UserError(f"{option} {path} is of another model: {reason}")
    model.load_state_dict(weights, strict=False)


def _find_mismatch(expected: dict[str, Tensor], weights: dict[str, Any]) -> str:
    if unexpected := [name for name in weights if name not in expected]:
        return f"it has {unexpected[0]} ({len(unexpected)} such), which this one lacks"
    stock = (name for name in expected if not _MECHANISMS & {*name.split(".")})
    if missing := [name for name in stock if name not in weights]:
        return f"it lacks {missing[0]} ({len(missing)} such)"
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            return f"{name} is {tuple(weight.shape)} there and {tuple(expected[name].shape)} here"
    return ""
