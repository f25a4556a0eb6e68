"""A Transformer language model of the transcripts, for the beam search."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from attention_core.checks import check_heads, check_probabilities, check_sizes
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.run_files import load_torch_file
from torch import Tensor, nn

from attention_speech.tokenizer import Tokenizer

_EMBEDDING = "custom_src_module.emb.Embedding.weight"
_POSITIONS = "positional_encoding.pe"


@dataclass(frozen=True)
class LanguageModelConfig:
    """The sizes of a language model; the defaults are the published ones, of 93.3 M parameters.

    Args:
        dim: Width.
        num_heads: Attention heads of a layer.
        num_layers: Layers.
        ffn_dim: Width of the MLP.
        dropout: Dropout.
        pre_norm: Norms before attention and MLP.
    """

    dim: int = 768
    num_heads: int = 12
    num_layers: int = 12
    ffn_dim: int = 3072
    dropout: float = 0.0
    pre_norm: bool = False

    def __post_init__(self) -> None:
        check_heads("model.network", dim=self.dim, num_heads=self.num_heads)
        check_sizes("model.network", ffn_dim=self.ffn_dim, num_layers=self.num_layers)
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
    """Load the language model of a file of this app or of speechbrain, in eval mode."""
    text = (
        f"model.language_model {path} is no language_model.pt of a run, nor speechbrain's lm.ckpt"
    )
    # a file that is no checkpoint raises errors of many kinds
    with convert_user_errors(Exception, prefix=f"{text}: "):
        content = load_torch_file(path)
        if "config" not in content:
            content = convert_speechbrain_weights(content)
        config, weights = LanguageModelConfig(**content["config"]), content["state_dict"]
        vocab_size = len(weights[_EMBEDDING])
    # the weights of speechbrain come without their pieces: its tokenizers are known by their ids
    pieces = content.get("pieces", tokenizer.pieces if tokenizer.is_speechbrains else [])
    if pieces != tokenizer.pieces or vocab_size != tokenizer.vocab_size:
        remedy = "train both on the same data with the same data.num_tokens"
        if "pieces" not in content:
            remedy = "pass speechbrain's tokenizer too, as data.tokenizer"
        raise UserError(
            f"model.language_model {path} has a vocabulary of {vocab_size} pieces, which is not "
            f"the recognizer's vocabulary of {tokenizer.vocab_size}: {remedy}"
        )
    with torch.random.fork_rng(devices=[]):  # training goes on with the numbers that it drew
        network = build_language_model(config, vocab_size)
    # the length of the table of positions differs by version of speechbrain
    weights = {**weights, _POSITIONS: network.state_dict()[_POSITIONS]}
    with convert_user_errors(RuntimeError, prefix=f"model.language_model {path} does not fit: "):
        network.load_state_dict(weights)
    return network.eval()


def convert_speechbrain_weights(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the content of a language model's file of the state_dict of speechbrain's recipe.

    A prefix of all names (`module.`) is dropped. The sizes are those of the weights; the width of a
    head, 64, and the norms after the sum are those of the recipe, as the weights do not tell them.

    Source: https://github.com/speechbrain/speechbrain/tree/develop/recipes/LibriSpeech/LM
    """
    (prefix,) = {name.removesuffix(_EMBEDDING) for name in weights if name.endswith(_EMBEDDING)}
    named = {name.removeprefix(prefix): value for name, value in weights.items()}
    dim = named[_EMBEDDING].shape[1]
    config = LanguageModelConfig(
        dim=dim,
        num_heads=dim // 64,
        num_layers=1 + max(int(n.split(".")[2]) for n in named if n.startswith("encoder.layers.")),
        ffn_dim=len(named["encoder.layers.0.pos_ffn.ffn.0.weight"]),
    )
    return {"config": asdict(config), "state_dict": named}
