"""The networks: transformers' own, or Crammed BERT, with weights from a folder, a hub or chance."""

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import transformers
from attention_core import attach
from experiment_kit.errors import UserError
from torch import nn

from attention_nlp import pretrained
from attention_nlp.tasks.base import Facts
from attention_nlp.weights import origin

# of each head the class of transformers that makes it, and the architectures that it knows
HEADS = {
    "labels": (
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    ),
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    "encoder": ("AutoModel", "MODEL_MAPPING"),
}
# where the tokens of an architecture appear: its embedding, and the list of its blocks
PARTS = {
    "bert": ("embeddings", "encoder.layer"),
    "roberta": ("embeddings", "encoder.layer"),
    "albert": ("encoder.embedding_hidden_mapping_in", "encoder.albert_layer_groups"),
    "gpt2": ("drop", "h"),
    "bart": ("encoder.layernorm_embedding", "encoder.layers"),
    "plbart": ("encoder.layernorm_embedding", "encoder.layers"),
    "t5": ("encoder.embed_tokens", "encoder.block"),
}
ARCHITECTURES = (*PARTS, "crammed")
_BIDIRECTIONAL = ("bert", "roberta")  # and yet transformers makes language models of them
_BEFORE = {"roberta": 2}  # positions that are used up before the first token


def build(
    architecture: str,
    weights: str | None,
    head: str,
    options: Mapping[str, Any] | None,
    facts: Facts,
    slots: Mapping[str, Any],
) -> nn.Module:
    """A network with a head and its mechanism; `options` are fields of the library's config.

    Without weights it is random, and says so in a warning. `slots` are `filter`, `kernel`,
    `tokens`, `reparam`, `layers` and `position`.

    Raises UserError for weights that cannot be had or are not of that network, for a head that the
    architecture does not have, and for texts longer than there are positions, ValueError for an
    unknown architecture and where the mechanism has no place.

    >>> from attention_core import Plain
    >>> tiny = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> slots = {"filter": Plain, "layers": ":"}
    >>> facts = Facts(num_labels=3, vocab_size=11, max_length=16, pad=0)
    >>> build("bert", None, "labels", tiny, facts, slots).classifier.out_features
    3
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model.architecture must be one of {known}, got {architecture!r}")
    if origin(weights, head) == "random":
        warnings.warn(
            f"{architecture} starts from random weights: its results cannot be compared with those "
            "of pretrained ones (model.weights names a folder, a hub id or minilm)",
            stacklevel=2,
        )
    if architecture == "crammed":
        from attention_nlp.models import crammed

        return crammed.build(head, weights, options, facts, slots)
    auto, mapping = (getattr(transformers, name) for name in HEADS[head])
    _check_head(architecture, head, mapping)
    settings = dict(options or {})
    if head == "causal" and architecture in _BIDIRECTIONAL:
        settings["is_decoder"] = True  # else it would read the words that it is to guess
    make = pretrained.random if weights is None else pretrained.load
    model = make(auto, architecture, weights, settings, facts)
    _check_positions(architecture, model.config, facts)
    model.config.use_cache = head == "seq2seq"  # nothing else generates
    attach(model)  # Plain everywhere, so that every layer's map can be watched
    return attach(model, slots["filter"], slots["layers"], **_others(slots))


def _others(slots: Mapping[str, Any]) -> dict[str, Any]:
    return {key: slots[key] for key in ("kernel", "tokens", "reparam", "position") if key in slots}


def _check_head(architecture: str, head: str, mapping: Any) -> None:
    known = [name for name in PARTS if type(transformers.AutoConfig.for_model(name)) in mapping]
    if architecture not in known:
        raise UserError(
            f"{architecture} has no head of the kind {head!r}, which model.task asks for; those "
            f"that have one: {', '.join(known)}"
        )


def _check_positions(architecture: str, config: Any, facts: Facts) -> None:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or architecture == "t5":  # relative: any length
        return
    positions -= _BEFORE.get(architecture, 0)
    if facts.max_length > positions:
        raise UserError(
            f"data.max_length {facts.max_length} is longer than the {positions} positions of "
            f"{architecture}"
        )


def layers(architecture: str, model: Any) -> list[nn.Module]:
    """The modules that put out tokens: the embedding, then each block; an encoder's where both.

    >>> from attention_core import Plain
    >>> facts = Facts(num_labels=3, vocab_size=11, max_length=16, pad=0)
    >>> tiny = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3}
    >>> slots = {"filter": Plain, "layers": ":"}
    >>> len(layers("bert", build("bert", None, "labels", tiny, facts, slots)))
    4
    """
    if hasattr(model, "layers"):  # Crammed BERT says so itself
        return list(model.layers())
    get: Callable[[str], Any] = lambda name: attrgetter(name)(backbone(model))  # noqa: E731
    first, blocks = PARTS[architecture]
    return [get(first), *get(blocks)]


def backbone(model: Any) -> Any:
    """The network below its head: the last of the nested base models."""
    inner = getattr(model, "encoder_model", model)  # a wrapper of ours holds it under this name
    return getattr(inner, "base_model", inner)
