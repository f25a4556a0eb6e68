"""Weights from a file: timm's, published ones, or those of a run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from timm.models import load_state_dict
from torch import Tensor, nn

_MECHANISMS = {"filter", "kernel", "tokens"}  # modules that a stock checkpoint lacks

# a block's parameters in AttnScale's, FeatScale's and GFSA's released code -> those here
_RELEASED = re.compile(r"(blocks\.\d+\.)(attn\.lamb|lamb1|lamb2)")
_PARAMETERS = {
    "attn.lamb": ("attn.filter.omega", "attn.filter.wK"),
    "lamb1": ("attn.tokens.s",),
    "lamb2": ("attn.tokens.t",),
}


def load_checkpoint(model: nn.Module, path: str, option: str = "model.checkpoint") -> None:
    """Load all weights of a file into a model; only those of a mechanism may be missing.

    The file may be timm's, or of the released code of DeiT, CaiT, AttnScale, GFSA or FeatScale
    (on DeiT with gain 2). Raises UserError, which names the `option`, for a file that is absent or
    no checkpoint, and for weights of another model, with the first name that does not fit.
    """
    load_weights(model, read_weights(path, option), f"{option} {path}")


def read_weights(path: str, option: str) -> dict[str, Any]:
    """Return the weights of a file, those of a run under the names of its network.

    Raises UserError, which names the `option`, for a file that is absent or no checkpoint.
    """
    if not Path(path).is_file():
        raise UserError(f"{option} {path} does not exist")
    try:
        weights = load_state_dict(path, use_ema=False, device="cpu", weights_only=True)
        of_run = {name[6:]: w for name, w in weights.items() if name.startswith("model.")}
    except Exception as error:  # whatever a damaged archive makes the reader raise
        raise UserError(f"{option} {path} is not a checkpoint that can be read") from error
    return of_run or weights


def load_weights(model: nn.Module, weights: dict[str, Any], origin: str) -> None:
    """Load weights as `load_checkpoint` does; `origin` names them in a UserError."""
    expected = model.state_dict()
    weights = dict(_rename_released(weights, expected))
    if reason := _find_mismatch(expected, weights):
        raise UserError(f"{origin} is of another model: {reason}")
    model.load_state_dict(weights, strict=False)


def _rename_released(
    weights: dict[str, Any], expected: dict[str, Tensor]
) -> Iterator[tuple[str, Any]]:
    for name, weight in weights.items():
        match = _RELEASED.fullmatch(name)
        names = [match[1] + end for end in _PARAMETERS[match[2]]] if match else []
        yield next((own for own in names if own in expected), name), weight


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
