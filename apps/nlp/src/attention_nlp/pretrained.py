"""Networks of transformers: random, or from a checkpoint that fills all but their heads."""

import warnings
from collections.abc import Mapping
from typing import Any

import transformers
from experiment_kit.errors import UserError

from attention_nlp.tasks.base import Facts
from attention_nlp.weights import quiet, reached, source


def random(
    auto: Any, architecture: str, _: str | None, options: dict[str, Any], facts: Facts
) -> Any:
    """A network whose sizes the data and the options say.

    Raises ValueError for options that the architecture does not have, or not so.
    """
    # of the architectures only T5 has no start of its own
    start = {"decoder_start_token_id": facts.pad} if architecture == "t5" else {}
    special = {"pad_token_id": facts.pad} | start
    if facts.eos >= 0:
        special |= {"eos_token_id": facts.eos, "bos_token_id": facts.eos}
    sizes = {"vocab_size": facts.vocab_size, "num_labels": facts.num_labels}
    _check_options(architecture, options)
    config = transformers.AutoConfig.for_model(architecture, **special, **sizes, **options)
    return auto.from_config(config)


def load(
    auto: Any, architecture: str, weights: str | None, options: dict[str, Any], facts: Facts
) -> Any:
    """A network from a folder or a hub; its head alone may be new, with a warning if it is words'.

    Raises UserError for weights that cannot be had, that leave a part of the network at random,
    or that hold filters, ValueError as `random` does.
    """
    assert weights is not None
    path = source(weights)
    _check_options(architecture, options)
    with quiet(), reached("model.weights", weights):
        config = transformers.AutoConfig.from_pretrained(
            path, num_labels=facts.num_labels, **options
        )
        _check_config(config, architecture, weights)
        if config.pad_token_id is None:  # GPT-2 finds the end of a text by it
            config.pad_token_id = facts.pad
        model, info = auto.from_pretrained(
            path, config=config, output_loading_info=True, ignore_mismatched_sizes=True
        )
    predicts = "LM" in auto.__name__  # words, by a head that was trained; others are always new
    _check_loaded(model, info, weights, predicts)
    # transformers hands it over in eval mode, in which Lightning would train it: no dropout
    return model.train()


def _check_config(config: Any, architecture: str, weights: str) -> None:
    if config.model_type != architecture:
        raise UserError(
            f"model.weights {weights} is of architecture {config.model_type}, "
            f"and model.architecture says {architecture}"
        )
    if getattr(config, "attention_core", None):
        raise UserError(
            f"model.weights {weights} was saved with filters or tokens, which would be lost: "
            "load it by attention_core.hosts.transformers.load, detach them and save it again"
        )


def _check_loaded(model: Any, info: Mapping[str, Any], weights: str, predicts: bool) -> None:
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    lacking = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    # a pooler belongs to the head: encoders are published without one
    lost = sorted(k for k in lacking if k.startswith(prefix) and "pooler" not in k)
    if lost:
        raise UserError(
            f"model.weights {weights} lacks {len(lost)} weights of the network or has them in "
            f"another size, such as {lost[0]}: it is of another network, has them under other "
            "names, or model.options asks for more"
        )
    new = sorted(k for k in lacking if not k.startswith(prefix))
    if new and predicts:
        warnings.warn(
            f"model.weights {weights} has no {new[0]}: the head of the language model is random",
            stacklevel=2,
        )


def _check_options(architecture: str, options: Mapping[str, Any]) -> None:
    default = transformers.AutoConfig.for_model(architecture)
    known = (set(default.to_dict()) | set(default.attribute_map)) - {"vocab_size", "num_labels"}
    if unknown := sorted(set(options) - known):
        raise ValueError(
            f"model.options of {architecture} has no {unknown[0]}, or the data says it"
        )
    try:
        transformers.AutoConfig.for_model(architecture, **options)
    except Exception as error:  # whatever the check of a field raises
        reason = " ".join(str(error).split())
        raise ValueError(f"model.options of {architecture}: {reason}") from error
