"""A Transformer language model over the pieces of the transcripts, for the search."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from experiment_kit.errors import UserError
from torch import nn

from attention_speech.vocabulary import Vocabulary


@dataclass(frozen=True)
class LanguageSize:
    """The sizes of a language model; the published one is the default.

    >>> LanguageSize(width=10)
    Traceback (most recent call last):
    ValueError: model.size: 12 heads do not divide width 10
    """

    width: int = 768
    heads: int = 12
    depth: int = 12
    hidden: int = 3072
    dropout: float = 0.0
    pre_norm: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"model.size: {self.heads} heads do not divide width {self.width}")


def language_network(size: LanguageSize, vocab_size: int) -> nn.Module:
    """speechbrain's TransformerLM: ids (B, U), 0 where padded, to logits (B, U, vocabulary).

    Source: https://github.com/speechbrain/speechbrain (lobes/models/transformer/TransformerLM.py)

    >>> network = language_network(LanguageSize(width=8, heads=2, depth=1, hidden=8), 7)
    >>> network(torch.ones(2, 3)).shape
    torch.Size([2, 3, 7])
    """
    from speechbrain.lobes.models.transformer.TransformerLM import TransformerLM

    return TransformerLM(
        vocab_size,
        size.width,
        size.heads,
        size.depth,
        0,
        size.hidden,
        size.dropout,
        nn.GELU,
        normalize_before=size.pre_norm,
    )


def save(network: nn.Module, size: LanguageSize, vocabulary: Vocabulary) -> dict[str, Any]:
    """What a file of a language model holds, for `torch.save`."""
    weights = {name: value.cpu() for name, value in network.state_dict().items()}
    return {"size": asdict(size), "pieces": vocabulary.pieces, "state_dict": weights}


def load(path: str | Path, vocabulary: Vocabulary) -> nn.Module:
    """The language model of a file, in eval mode.

    Raises UserError for a file that is none, or one of another vocabulary.
    """
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        size, pieces, weights = LanguageSize(**held["size"]), held["pieces"], held["state_dict"]
    except Exception as error:  # whatever a file that is no checkpoint makes the reader raise
        raise UserError(f"model.language_model {path} is no language model of this app") from error
    if pieces != vocabulary.pieces:
        raise UserError(
            f"model.language_model {path} has a vocabulary of {len(pieces)} pieces that is not "
            f"the recogniser's, of {vocabulary.size}: train both on the same data.vocabulary"
        )
    network = language_network(size, len(pieces))
    network.load_state_dict(weights)
    return network.eval()
