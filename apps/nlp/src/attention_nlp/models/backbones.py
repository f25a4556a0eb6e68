"""Build a network with a head: one of transformers or Crammed BERT, random or pretrained."""

import warnings
from collections.abc import Mapping
from typing import Any

import transformers
from attention_core import attach
from experiment_kit.errors import UserError, convert_user_errors
from torch import nn

from attention_nlp.models import crammed
from attention_nlp.models.checkpoints import describe_weights_source, load_pretrained
from attention_nlp.tasks.base import TextInfo

# for each head, the class of transformers that builds it and the table of its architectures
HEADS = {
    "labels": ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    "encoder": ("AutoModel", "MODEL_MAPPING"),
}
TRANSFORMERS = ("bert", "roberta", "albert", "gpt2", "bart", "plbart", "t5")
ARCHITECTURES = (*TRANSFORMERS, "crammed")
_ENCODERS = ("bert", "roberta")  # bidirectional, though transformers has causal heads for them
_RESERVED_POSITIONS = {"roberta": 2}  # before that of the first token


def build_backbone(
    architecture: str,
    weights: str | None,
    head: str,
    options: Mapping[str, Any] | None,
    info: TextInfo,
    slots: Mapping[str, Any],
) -> nn.Module:
    """Build a network with a head and its mechanism; `options` are fields of its configuration."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model.architecture must be one of {known}, got {architecture!r}")
    if describe_weights_source(weights, head) == "random":
        warnings.warn(
            f"{architecture} starts from random weights: do not compare its results with those of "
            "pretrained networks (set model.weights to a folder, a hub id or minilm)",
            stacklevel=2,
        )
    if architecture == "crammed":
        return crammed.build_crammed(head, weights, options, info, slots)
    auto, mapping = (getattr(transformers, name) for name in HEADS[head])
    _check_head(architecture, head, mapping)
    settings = dict(options or {})
    if head == "causal" and architecture in _ENCODERS:
        settings["is_decoder"] = True  # else a token attends to those that it predicts
    _check_options(architecture, settings)
    if weights is None:
        model = from_config(auto, architecture, settings, info)
    else:
        model = load_pretrained(auto, architecture, weights, settings, info)
    _check_sizes(architecture, model, info)
    model.config.use_cache = head == "seq2seq"  # nothing else generates
    attach(model)  # Plain everywhere, so that the monitor sees every layer's map
    return attach(model, **slots)


def from_config(auto: Any, architecture: str, options: dict[str, Any], info: TextInfo) -> Any:
    """Build a random network by a class `AutoModel...`, with the vocabulary of the data."""
    special = {"pad_token_id": info.pad_token_id}
    if architecture == "t5":  # the only one without a default
        special["decoder_start_token_id"] = info.pad_token_id
    if info.eos_token_id >= 0:
        special |= {"eos_token_id": info.eos_token_id, "bos_token_id": info.eos_token_id}
    sizes = {"vocab_size": info.vocab_size, "num_labels": info.num_labels}
    config = transformers.AutoConfig.for_model(architecture, **special, **sizes, **options)
    return auto.from_config(config)


def _check_options(architecture: str, options: Mapping[str, Any]) -> None:
    default = transformers.AutoConfig.for_model(architecture)
    known = (set(default.to_dict()) | set(default.attribute_map)) - {"vocab_size", "num_labels"}
    if unknown := sorted(set(options) - known):
        text = f"model.options: {architecture}"
        raise ValueError(f"{text} has no {unknown[0]}, or the data determines it")
    # the check of a field may raise any error
    with convert_user_errors(Exception, prefix=f"model.options of {architecture}: "):
        transformers.AutoConfig.for_model(architecture, **options)


def _check_head(architecture: str, head: str, mapping: Any) -> None:
    for_model = transformers.AutoConfig.for_model
    known = [name for name in TRANSFORMERS if type(for_model(name)) in mapping]
    if architecture not in known:
        text = f"{architecture} has no head of kind {head!r}, which model.task needs;"
        raise UserError(f"{text} architectures that have one: {', '.join(known)}")


def _check_sizes(architecture: str, model: Any, info: TextInfo) -> None:
    if info.vocab_size > (size := model.get_input_embeddings().num_embeddings):
        raise UserError(
            f"the tokenizer has {info.vocab_size} tokens, and model.weights {size}: give "
            "data.tokenizer that of the weights, or resize_token_embeddings and save both"
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None or architecture == "t5":  # relative: any length
        return
    positions -= _RESERVED_POSITIONS.get(architecture, 0)
    if info.max_length > positions:
        text = f"data.max_length {info.max_length} is longer than the {positions} positions"
        raise UserError(f"{text} of {architecture}")
