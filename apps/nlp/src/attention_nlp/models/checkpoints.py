"""Load weights and tokenizers: from a folder, the hub, a package, or a checkpoint of a run."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from experiment_kit.data.download import find_packaged_weights
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.run import Run
from experiment_kit.run_files import load_torch_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from attention_nlp.tasks.base import TextInfo

TOKENIZER_KEY = "trained_tokenizer"  # in the state of a data module
_ENCODER_PREFIX = "model.base_model."


def resolve_weights(weights: str) -> str:
    """Return the folder of the package for `minilm`, and any other name unchanged."""
    return str(find_packaged_weights(weights) or weights)


def describe_weights_source(weights: str | None, head: str) -> str:
    """Describe for a result the weights that training starts from; pre-training needs none."""
    if weights is not None:
        if Run.parse(weights):
            weights = "/".join(Path(weights).parts[-3:])
        return f"pretrained: {weights}"
    return "" if head == "masked" else "random"


def hub_errors(argument: str, name: str) -> AbstractContextManager[None]:
    """Turn the errors of loading `name` into a UserError that names the argument."""
    text = (
        f"{argument} {name} is neither a local folder that transformers can read nor reachable on "
        "the hub (give a folder, minilm, or null for random ones): "
    )
    return convert_user_errors(OSError, ValueError, ImportError, prefix=text)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars and the report on a new head, which is intended."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load_pretrained(
    auto: Any, architecture: str, weights: str, options: Mapping[str, Any], info: TextInfo
) -> Any:
    """Load a network by a class `AutoModel...` of transformers; only its head may be new."""
    path = resolve_weights(weights)
    with quiet_transformers(), hub_errors("model.weights", weights):
        config = transformers.AutoConfig.from_pretrained(
            path, num_labels=info.num_labels, **options
        )
        _check_config(config, architecture, weights)
        if config.pad_token_id is None:  # GPT-2 finds the end of a text by it
            config.pad_token_id = info.pad_token_id
        model, loading = auto.from_pretrained(
            path, config=config, output_loading_info=True, ignore_mismatched_sizes=True
        )
    _check_loaded(model, loading, weights, is_language_model="LM" in auto.__name__)
    # transformers returns it in eval mode, and Lightning would keep that: no dropout in training
    return model.train()


def _check_config(config: Any, architecture: str, weights: str) -> None:
    if config.model_type != architecture:
        text = f"model.weights {weights} is of architecture {config.model_type},"
        raise UserError(f"{text} but model.architecture is {architecture}")
    if getattr(config, "attention_core", None):
        raise UserError(
            f"model.weights {weights} was saved with filters or tokens, which would be lost: "
            "load it by attention_core.hosts.transformers.load, detach them and save it again"
        )


def _check_loaded(
    model: Any, loading: Mapping[str, Any], weights: str, is_language_model: bool
) -> None:
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    # a pooler belongs to the head: encoders are published without one
    lost = sorted(k for k in missing if k.startswith(prefix) and "pooler" not in k)
    if lost:
        raise UserError(
            f"model.weights {weights} lacks {len(lost)} weights of the network or has them in "
            f"another size, such as {lost[0]}: it is of another network, uses other names, or "
            "model.options asks for more"
        )
    new = sorted(k for k in missing if not k.startswith(prefix))
    if new and is_language_model:  # its head should be trained; that of a classifier is always new
        warnings.warn(
            f"model.weights {weights} has no {new[0]}: the head of the language model is random",
            stacklevel=2,
        )


def is_own_run(weights: str) -> bool:
    """Return True for the folder of a run of this app, or for a checkpoint."""
    return weights.endswith(".ckpt") or bool(Run.parse(weights))


@cache  # the check of a large checkpoint takes seconds
def _find_best_epoch(folder: str) -> str:
    run = Run(Path(folder))
    if path := run.find_test_checkpoint() if run.read_result() else None:
        return str(path)
    raise UserError(f"model.weights {folder} is the folder of no finished run: train it first")


def load_encoder(encoder: nn.Module, path: str) -> None:
    """Load the encoder of a run in place, without its head."""
    weights = {
        name.removeprefix(_ENCODER_PREFIX): weight
        for name, weight in _read_checkpoint(path).get("state_dict", {}).items()
        if name.startswith(_ENCODER_PREFIX)
    }
    with convert_user_errors(RuntimeError, prefix=f"model.weights {path} is of another network: "):
        encoder.load_state_dict(weights)


def load_run_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer that a run was trained with; UserError if it has none."""
    state = _read_tokenizer_state(path)
    tokenizer = Tokenizer.from_str(json.dumps(state["tokenizer"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **state["special"])


def load_vocab_size(path: str) -> int:
    """Return the vocabulary size of a run's network, which its tokenizer may not fill."""
    return _read_tokenizer_state(path)["vocabulary"]


def dump_tokenizer(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> str:
    """Return a tokenizer and its network's vocabulary size as JSON, for a checkpoint."""
    state = {"tokenizer": json.loads(tokenizer.backend_tokenizer.to_str())}
    state |= {"special": tokenizer.special_tokens_map, "vocabulary": vocab_size}
    return json.dumps(state)


def _read_tokenizer_state(path: str) -> dict[str, Any]:
    parts = _read_checkpoint(path).values()
    states = [part for part in parts if isinstance(part, dict) and TOKENIZER_KEY in part]
    if not states:
        raise UserError(f"{path} holds no tokenizer: it is not of a pre-training run")
    return json.loads(states[0][TOKENIZER_KEY])


def _read_checkpoint(path: str) -> dict[str, Any]:
    path = _find_best_epoch(path) if Run.parse(path) else path
    if not Path(path).is_file():
        raise UserError(f"model.weights {path} does not exist")
    # a damaged archive raises errors of many kinds
    with convert_user_errors(Exception, prefix=f"model.weights {path} is no readable checkpoint: "):
        content = load_torch_file(path)
    return content if isinstance(content, dict) else {}
