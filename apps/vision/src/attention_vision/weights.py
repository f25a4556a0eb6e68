"""Weights from a file: timm's own, DeiT's and CaiT's published ones, or those of a run here."""

from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from timm.models import load_state_dict
from torch import Tensor, nn

_NEW = ("filter", "kernel", "tokens")  # what a stock checkpoint may lack


def load(model: nn.Module, path: str) -> None:
    """Load all weights of a file, in place; only those of a mechanism may be missing from it.

    Raises UserError for a file that is absent or no checkpoint, and for weights of another model,
    naming the first that does not fit.
    """
    if not Path(path).is_file():
        raise UserError(f"model.checkpoint {path} does not exist")
    try:
        weights = load_state_dict(path, use_ema=False, device="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive makes the reader raise
        raise UserError(f"model.checkpoint {path} is not a checkpoint that can be read") from error
    weights = _of_run(weights)
    if reason := _mismatch(model.state_dict(), weights):
        raise UserError(f"model.checkpoint {path} is of another model: {reason}")
    model.load_state_dict(weights, strict=False)


def _of_run(weights: dict[str, Any]) -> dict[str, Any]:
    own = {name.removeprefix("model."): w for name, w in weights.items() if name[:6] == "model."}
    return own or weights


def _mismatch(own: dict[str, Tensor], weights: dict[str, Tensor]) -> str:
    if unexpected := [name for name in weights if name not in own]:
        return f"it has {unexpected[0]} ({len(unexpected)} such), which this one lacks"
    missing = [n for n in own if n not in weights and not set(n.split(".")) & {*_NEW}]
    if missing:
        return f"it lacks {missing[0]} ({len(missing)} such)"
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            return f"{name} is {tuple(weight.shape)} there and {tuple(own[name].shape)} here"
    return ""
