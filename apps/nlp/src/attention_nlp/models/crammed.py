"""Crammed BERT (Geiping and Goldstein 2023, https://arxiv.org/abs/2212.14034) with slots.

Pre-LN, without biases except those of its norms. Shapes: B texts of N tokens, D features, V words,
C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, SelfAttention
from attention_core.checks import check_even, check_probabilities, check_sizes
from attention_core.hosts.selection import select_layers
from experiment_kit.errors import UserError
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from attention_nlp.models.checkpoints import load_encoder
from attention_nlp.tasks.base import Output, TextInfo

INIT_STD = 0.02  # for all weights
POOLED_DIM = 1024  # the first token's, in the head for labels
DROPOUT = {"masked": 0.0, "labels": 0.1}  # as published: none in pre-training


@dataclass(frozen=True)
class CrammedConfig:
    """The size of a network.

    Args:
        num_layers: Layers.
        dim: Width, even.
        num_heads: Attention heads of a layer.
        ffn_dim: Width of the GLU, both halves.
        num_positions: Tokens of the longest text.
        dropout: Dropout of the embedding, the attention and both branches; null is 0 in
            pre-training and 0.1 in fine-tuning.
    """

    num_layers: int = 16
    dim: int = 768
    num_heads: int = 12
    ffn_dim: int = 3072
    num_positions: int = 128
    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.dim % self.num_heads or self.dim % 2:
            text = f"model.options: dim must be even and divisible by the {self.num_heads}"
            raise ValueError(f"{text} heads, got {self.dim}")
        check_even("model.options", ffn_dim=self.ffn_dim)
        check_sizes("model.options", num_layers=self.num_layers, num_positions=self.num_positions)
        check_probabilities("model.options", dropout=self.dropout or 0.0)


class Embedding(nn.Module):
    r"""Words plus sinusoidal positions, which one learned number scales, then LayerNorm.

    .. math:: \mathrm{LN}(w + s p), \qquad p_{i, 2j} = \sin(i \, 10000^{-2j/D}), \quad
        p_{i, 2j+1} = \cos(i \, 10000^{-2j/D}), \quad s_0 = D^{-1/2}

    Shapes: ids (B, N) -> (B, N, D).
    """

    table: Tensor

    def __init__(
        self, vocab_size: int, dim: int, num_positions: int, pad_token_id: int, dropout: float
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, dim, padding_idx=pad_token_id)
        self.scale = nn.Parameter(torch.full((1,), dim**-0.5))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        frequencies = 1e4 ** -(torch.arange(0, dim, 2) / dim)
        angle = torch.outer(torch.arange(num_positions), frequencies)
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # (positions, D)
        self.register_buffer("table", table, persistent=False)
        nn.init.normal_(self.word.weight, std=INIT_STD)
        with torch.no_grad():
            self.word.weight[pad_token_id].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """Embed the ids."""
        return self.dropout(self.norm(self.word(ids) + self.scale * self.table[: ids.shape[1]]))


class Block(nn.Module):
    r"""Attention, then a GLU, each with a LayerNorm before it and a residual connection.

    .. math:: x' = x + \mathrm{SA}(\mathrm{LN}\,x), \qquad
        x'' = x' + (u \odot \mathrm{GELU}(g)) W_2, \quad (u, g) = \mathrm{LN}(x') W_1

    `tokens`, where there is one, acts on x'.
    """

    def __init__(
        self,
        attention: SelfAttention,
        dim: int,
        ffn_dim: int,
        dropout: float,
        tokens: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-12) for _ in range(2))
        self.attention, self.tokens = attention, tokens
        self.up = nn.Linear(dim, ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim // 2, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        weights = [attention.qkv.weight, attention.proj.weight, self.up.weight, self.down.weight]
        if is_parametrized(attention.proj):  # the spectrum has drawn V and the projection
            weights[:2] = [attention.qkv.weight[: 2 * dim]]
        for weight in weights:
            nn.init.normal_(weight, std=INIT_STD)

    def forward(self, x: Tensor, valid_mask: Tensor | None = None) -> Tensor:
        """Encode (B, N, D); `valid_mask` (B, N) is False for padding."""
        x = x + self.dropout(self.attention(self.norm1(x), valid_mask))
        if self.tokens is not None:
            x = self.tokens(x, valid_mask)
        linear, gate = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.dropout(self.down(linear * F.gelu(gate)))


class CrammedEncoder(nn.Module):
    """Embedding, blocks and a last LayerNorm, below a head.

    16 blocks and 32768 words are 119,589,889 parameters, 32 blocks 214,010,881.

    Shapes: ids (B, N), valid_mask (B, N) -> (B, N, D).
    """

    def __init__(
        self, info: TextInfo, size: CrammedConfig, blocks: Sequence[Block], dropout: float
    ) -> None:
        super().__init__()
        self.embedding = Embedding(
            info.vocab_size, size.dim, size.num_positions, info.pad_token_id, dropout
        )
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(size.dim, eps=1e-12)

    def forward(self, ids: Tensor, valid_mask: Tensor | None = None) -> Tensor:
        """Encode the ids."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, valid_mask)
        return self.norm(x)


class CrammedForMaskedLM(nn.Module):
    """The decoder of pre-training: the transposed word embedding, without a bias.

    With a mask `positions` (B, N) only those M words are decoded, else all of them.

    Shapes: ids (B, N) -> logits (M, V) or (B, N, V).
    """

    def __init__(self, encoder: CrammedEncoder) -> None:
        super().__init__()
        self.base_model = encoder

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Output:
        """Decode."""
        x = self.base_model(input_ids, attention_mask)
        x = x if positions is None else x[positions]
        return Output(F.linear(x, self.base_model.embedding.word.weight))


class CrammedForLabels(nn.Module):
    """The head of fine-tuning: first token, linear, tanh, dropout, linear; logits (B, C)."""

    def __init__(self, encoder: CrammedEncoder, dim: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.base_model = encoder
        self.pool, self.classifier = nn.Linear(dim, POOLED_DIM), nn.Linear(POOLED_DIM, num_labels)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.pool, self.classifier):
            nn.init.normal_(linear.weight, std=INIT_STD)
            nn.init.zeros_(linear.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        """Classify."""
        first = self.base_model(input_ids, attention_mask)[:, 0]
        return Output(self.classifier(self.dropout(torch.tanh(self.pool(first)))))


def build_crammed(
    head: str,
    weights: str | None,
    options: Mapping[str, Any] | None,
    info: TextInfo,
    slots: Mapping[str, Any],
) -> nn.Module:
    """Build Crammed BERT with the head `masked` or `labels`; `weights` is a checkpoint of a run.

    A checkpoint fills all but the head.
    """
    if head not in DROPOUT:
        raise ValueError(f"crammed has heads for {' and '.join(DROPOUT)}, not for {head}")
    size = _parse_options(options, info)
    layers = select_layers(slots["layers"], size.num_layers)
    if slots.get("tokens") and slots.get("position") not in (None, "attention", "residual"):
        text = "model.position of crammed is"
        raise ValueError(f"{text} attention or residual, got {slots['position']!r}")
    dropout = DROPOUT[head] if size.dropout is None else size.dropout
    blocks = [
        _build_block(size, dropout, slots if layer in layers else {})
        for layer in range(size.num_layers)
    ]
    encoder = CrammedEncoder(info, size, blocks, dropout)
    if weights is not None:
        load_encoder(encoder, weights)
    if head == "masked":
        return CrammedForMaskedLM(encoder)
    return CrammedForLabels(encoder, size.dim, info.num_labels, dropout)


def _parse_options(options: Mapping[str, Any] | None, info: TextInfo) -> CrammedConfig:
    known = [field.name for field in fields(CrammedConfig)]
    for name in options or {}:
        if name not in known:
            raise ValueError(f"model.options of crammed are {', '.join(known)}, got {name!r}")
    size = CrammedConfig(**(options or {}))
    if info.max_length > size.num_positions:
        text = f"data.max_length {info.max_length} is longer than the {size.num_positions}"
        raise UserError(f"{text} positions of crammed (model.options.num_positions)")
    return size


def _build_block(size: CrammedConfig, dropout: float, slots: Mapping[str, Any]) -> Block:
    tokens = slots.get("tokens")
    is_residual = slots.get("position") == "residual"
    attention = SelfAttention(
        size.dim,
        size.num_heads,
        slots.get("filter", Plain),
        slots.get("kernel"),
        None if is_residual else tokens,
        bias=False,
        dropout=dropout,
    )
    after = tokens(size.dim) if tokens and is_residual else None
    block = Block(attention, size.dim, size.ffn_dim, dropout, after)
    if (reparam := slots.get("reparam")) is not None:  # after the other weights: it draws V itself
        values = slice(2 * size.dim, 3 * size.dim)
        reparam(size.dim).tie(attention.qkv, attention.proj, values)
    return block
