"""What a run of pre-training leaves to fine-tuning: the weights of its encoder, its tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
from experiment_kit.errors import UserError
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

_ENCODER = "model.base_model."
TOKENIZER = "trained_tokenizer"  # its key in the state of a data module


def load(encoder: nn.Module, path: str) -> None:
    """Load the encoder of a run's checkpoint, in place; its head stays behind.

    Raises UserError for a file that is absent or no such checkpoint, and for weights of another
    encoder, naming the first that does not fit.
    """
    weights = {
        name.removeprefix(_ENCODER): weight
        for name, weight in _read(path).get("state_dict", {}).items()
        if name.startswith(_ENCODER)
    }
    if reason := _mismatch(encoder.state_dict(), weights):
        raise UserError(f"model.weights {path} is of another network: {reason}")
    encoder.load_state_dict(weights)


def tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer that a run's checkpoint was trained with.

    Raises UserError for a file that is absent or has none.
    """
    saved = _saved(path)
    made = Tokenizer.from_str(json.dumps(saved["tokenizer"]))
    return PreTrainedTokenizerFast(tokenizer_object=made, **saved["special"])


def vocabulary(path: str) -> int:
    """How many words the network of a run's checkpoint has, which its tokenizer may not fill.

    Raises UserError for a file that is absent or has no tokenizer.
    """
    return _saved(path)["vocabulary"]


def packed(tokenizer: PreTrainedTokenizerFast, vocabulary: int) -> str:
    """A tokenizer and its network's size of vocabulary as text, for a data module's state."""
    saved = {"tokenizer": json.loads(tokenizer.backend_tokenizer.to_str())}
    saved |= {"special": tokenizer.special_tokens_map, "vocabulary": vocabulary}
    return json.dumps(saved)


def _saved(path: str) -> dict[str, Any]:
    states = [part for part in _read(path).values() if isinstance(part, dict) and TOKENIZER in part]
    if not states:
        raise UserError(f"{path} holds no tokenizer: it is of no pre-training")
    return json.loads(states[0][TOKENIZER])


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise UserError(f"model.weights {path} does not exist")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive makes the reader raise
        raise UserError(f"model.weights {path} is not a checkpoint that can be read") from error
    return found if isinstance(found, dict) else {}


def _mismatch(own: dict[str, Tensor], weights: dict[str, Tensor]) -> str:
    if unexpected := [name for name in weights if name not in own]:
        return f"it has {unexpected[0]} ({len(unexpected)} such), which this one lacks"
    if missing := [name for name in own if name not in weights]:
        return f"it lacks {missing[0]} ({len(missing)} such)"
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            return f"{name} is {tuple(weight.shape)} there and {tuple(own[name].shape)} here"
    return ""
