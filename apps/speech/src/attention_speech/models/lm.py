"""A Transformer language model of the transcripts, for the beam search."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from attention_core.checks import (
    check_heads,
    check_orders,
    check_probabilities,
    check_sizes,
)
from experiment_kit.errors import UserError
from torch import nn

from attention_speech.tokenizer import Tokenizer


@dataclass(frozen=True)
class LanguageModelConfig:
    """The sizes of a language model; the defaults are those of the published one.

    >>> LanguageModelConfig(dim=10)
    Traceback (most recent call last):
    ValueError: model.network.dim must be a multiple of num_heads, got 10 and 12
    """

    dim: int = 768
    num_heads: int = 12
    num_layers: int = 12
    ffn_dim: int = 3072
    dropout: float = 0.0
    pre_norm: bool = False

    def __post_init__(self) -> None:
        check_heads("model.network", dim=self.dim, num_heads=self.num_heads)
        check_sizes("model.network", ffn_dim=self.ffn_dim)
        check_orders("model.network", num_layers=self.num_layers)
        check_probabilities("model.network", dropout=self.dropout)


def build_language_model(config: LanguageModelConfig, vocab_size: int) -> nn.Module:
    """Build speechbrain's TransformerLM, from ids (B, U), 0 where padded, to logits (B, U, V).

    Source: https://github.com/speechbrain/speechbrain (lobes/models/transformer/TransformerLM.py)
    """
    from speechbrain.lobes.models.transformer.TransformerLM import TransformerLM

    return TransformerLM(
        vocab_size,
        config.dim,
        config.num_heads,
        config.num_layers,
        0,
        config.ffn_dim,
        config.dropout,
        nn.GELU,
        normalize_before=config.pre_norm,
    )


def pack_language_model(
    network: nn.Module, config: LanguageModelConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the content of a language model's file, for `torch.save`."""
    weights = {name: value.cpu() for name, value in network.state_dict().items()}
    return {"config": asdict(config), "pieces": tokenizer.pieces, "state_dict": weights}


def load_language_model(path: str | Path, tokenizer: Tokenizer) -> nn.Module:
    """Load the language model of a file, in eval mode.

    Raises UserError for a file that is none, or that has another vocabulary.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        config, pieces = LanguageModelConfig(**content["config"]), content["pieces"]
        weights = content["state_dict"]
    except Exception as error:  # a file that is no checkpoint raises errors of many kinds
        raise UserError(f"model.language_model {path} is no language model of this app") from error
    if pieces != tokenizer.pieces:
        raise UserError(
            f"model.language_model {path} has a vocabulary of {len(pieces)} pieces, which is not "
            f"the recognizer's vocabulary of {tokenizer.vocab_size}: train both on the same data "
            "with the same data.num_tokens"
        )
    network = build_language_model(config, len(pieces))
    network.load_state_dict(weights)
    return network.eval()
