"""The networks: transformers' own, or Crammed BERT, with weights from a folder, a hub or chance."""

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import transformers
from attention_core import attach
from experiment_kit.errors import UserError
from torch import nn

from attention_nlp.tasks.base import Facts
from attention_nlp.weights import origin, quiet, reached, source

HEADS = {
    "labels": "AutoModelForSequenceClassification",
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModel",
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
    `tokens`, `reparam`, `layers` and `seat`.

    Raises UserError for weights that cannot be had and for texts longer than there are positions,
    ValueError for an unknown architecture and where the mechanism has no place.

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
    auto = getattr(transformers, HEADS[head])
    make = _random if weights is None else _pretrained
    model = make(auto, architecture, weights, dict(options or {}), facts)
    _check_positions(architecture, model.config, facts)
    model.config.use_cache = head == "seq2seq"  # nothing else generates
    attach(model)  # Plain everywhere, so that every layer's map can be watched
    return attach(model, slots["filter"], slots["layers"], **_others(slots))


def _others(slots: Mapping[str, Any]) -> dict[str, Any]:
    return {key: slots[key] for key in ("kernel", "tokens", "reparam", "seat") if key in slots}


def _random(
    auto: Any, architecture: str, _: str | None, options: dict[str, Any], facts: Facts
) -> Any:
    # of the architectures only T5 has no start of its own
    start = {"decoder_start_token_id": facts.pad} if architecture == "t5" else {}
    special = {"pad_token_id": facts.pad} | start
    if facts.eos >= 0:
        special |= {"eos_token_id": facts.eos, "bos_token_id": facts.eos}
    sizes = {"vocab_size": facts.vocab_size, "num_labels": facts.num_labels}
    _check_options(architecture, options)
    config = transformers.AutoConfig.for_model(architecture, **special, **sizes, **options)
    return auto.from_config(config)


def _pretrained(
    auto: Any, architecture: str, weights: str | None, options: dict[str, Any], facts: Facts
) -> Any:
    assert weights is not None
    path = source(weights)
    _check_options(architecture, options)
    with quiet(), reached("model.weights", weights):
        config = transformers.AutoConfig.from_pretrained(
            path, num_labels=facts.num_labels, **options
        )
        if config.model_type != architecture:
            raise UserError(
                f"model.weights {weights} is of architecture {config.model_type}, "
                f"and model.architecture says {architecture}"
            )
        if config.pad_token_id is None:  # GPT-2 finds the end of a text by it
            config.pad_token_id = facts.pad
        # transformers hands it over in eval mode, in which Lightning would train it: no dropout
        return auto.from_pretrained(path, config=config).train()


def _check_options(architecture: str, options: Mapping[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(architecture)
    known = (set(config.to_dict()) | set(config.attribute_map)) - {"vocab_size", "num_labels"}
    if unknown := sorted(set(options) - known):
        raise ValueError(
            f"model.options of {architecture} has no {unknown[0]}, or the data says it"
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
