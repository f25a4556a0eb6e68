"""Networks: the encoder of UEA's time series, and that of the Long Range Arena's tokens.

The first is post-LN with a flattening head, as Zerveas et al. 2021
(https://arxiv.org/abs/2010.02803) and Flowformer (https://arxiv.org/abs/2202.06258) train it. The
second is pre-LN with the mean of the tokens, as Nystromformer (https://arxiv.org/abs/2102.03902),
Primalformer and AGF train it. Both learn their positions.

Shapes: B batch, N steps or tokens, F features, D dim, C classes.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from attention_core import SelfAttention
from torch import Tensor, nn

BuildAttention = Callable[[int], SelfAttention]  # the attention of layer i


class NetworkSize(NamedTuple):
    """The size that data and config ask of a network; of tokens, `num_features` counts the ids."""

    num_features: int
    num_classes: int
    max_length: int
    dim: int
    ffn_dim: int
    num_layers: int
    dropout: float


class Block(nn.Module):
    """A post-LN layer: attention, then an MLP with GELU, each with residual and LayerNorm."""

    def __init__(self, dim: int, attention: SelfAttention, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode; `mask` (B, N) is True where a step is valid."""
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.apply_mlp(x))

    def apply_mlp(self, x: Tensor) -> Tensor:
        """Map each step (D) -> (ffn_dim) -> (D), with dropout after both."""
        return self.dropout(self.down(self.dropout(self.activation(self.up(x)))))


class PreNormBlock(Block):
    """A pre-LN layer: LayerNorm comes before attention and before the MLP."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode; `mask` (B, N) is True where a token is valid."""
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.apply_mlp(self.norm2(x))


class Encoder(nn.Module):
    """The body of the networks: an embedding, `num_layers` blocks of a kind, and a LayerNorm."""

    def __init__(
        self,
        size: NetworkSize,
        embedding: nn.Module,
        block: type[Block],
        attention: BuildAttention,
        mask_attention: bool,
    ) -> None:
        super().__init__()
        self.mask_attention = mask_attention
        self.embedding: Any = embedding
        self.blocks: Any = nn.ModuleList(
            block(size.dim, attention(layer), size.ffn_dim, size.dropout)
            for layer in range(size.num_layers)
        )
        self.norm = nn.LayerNorm(size.dim)

    def encode_tokens(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode into tokens (B, N, D); attention ignores padding if `mask_attention`."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, mask if self.mask_attention else None)
        return self.norm(x)


class SeriesEmbedding(nn.Module):
    r"""Project each step and add its learned position.

    .. math:: \sqrt D (x W + b) + p, \qquad p \sim U(-0.02, 0.02)

    Shapes: (B, N, F) -> (B, N, D), N at most `max_length`.
    """

    def __init__(self, num_features: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(num_features, dim)
        self.position = nn.Parameter(torch.empty(max_length, dim).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        dim, steps = self.position.shape[1], x.shape[1]
        return self.dropout(self.project(x) * dim**0.5 + self.position[:steps])


class SeriesClassifier(Encoder):
    """Embedding, blocks, and a linear head on all steps concatenated, with padding set to zero.

    Parameters with AGF at JapaneseVowels' size, 12 features and 29 steps: 6,986,259.

    Shapes: x (B, N, F), mask (B, N) -> logits (B, C); N is exactly `max_length`.

    Source: https://arxiv.org/abs/2010.02803

    >>> from attention_core import SelfAttention
    >>> size = NetworkSize(num_features=3, num_classes=4, max_length=5, dim=8, ffn_dim=16,
    ...                    num_layers=2, dropout=0.0)
    >>> model = SeriesClassifier(size, lambda layer: SelfAttention(8, 2))
    >>> model(*model.example_inputs(3, 5, batch_size=2)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, size: NetworkSize, attention: BuildAttention, mask_attention: bool = True
    ) -> None:
        embedding = SeriesEmbedding(size.num_features, size.dim, size.max_length, size.dropout)
        super().__init__(size, embedding, Block, attention, mask_attention)
        self.out = nn.Sequential(nn.GELU(), nn.Dropout(size.dropout))
        self.head = nn.Linear(size.max_length * size.dim, size.num_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify; the head never sees padding, the attention may (as published)."""
        steps = len(self.embedding.position)
        if x.ndim != 3 or x.shape[1] != steps or not x.is_floating_point():
            text = f"takes series (batch, {steps}, features), got {tuple(x.shape)} of {x.dtype}"
            hint = "pad or cut them; token ids take the backbone lra or lra_dual"
            raise ValueError(f"{type(self).__name__} {text}: {hint}")
        x = self.out(self.encode_tokens(x, mask)) * mask.unsqueeze(-1)  # (B, N, D)
        return self.head(x.flatten(1))

    def example_inputs(
        self, num_features: int, max_length: int, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return random series (B, N, F) without padding, and their mask (B, N)."""
        x = torch.randn(batch_size, max_length, num_features)
        return x, torch.ones(batch_size, max_length, dtype=torch.bool)


class TokenEmbedding(nn.Module):
    r"""A vector for each token plus one for its position, both from N(0, 0.02^2).

    Shapes: ids (B, N) -> (B, N, D); raises ValueError for N above `max_length`.
    """

    def __init__(self, vocab_size: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Parameter(torch.empty(max_length, dim).normal_(0, 0.02))
        nn.init.normal_(self.token.weight, 0, 0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        if x.shape[1] > len(self.position):
            text = f"the model has {len(self.position)}"
            raise ValueError(f"{text} positions, the sequences {x.shape[1]} tokens")
        return self.dropout(self.token(x) + self.position[: x.shape[1]])


class TokenClassifier(Encoder):
    r"""Embedding, pre-LN blocks, LayerNorm, the mean of the tokens, and a head of two layers.

    Parameters with softmax attention on ListOps, 32 ids and 2,048 positions: 209,802.

    Shapes: ids x (B, N), mask (B, N), True where a token is valid -> logits (B, C).

    Args:
        pool: Mean over `valid` tokens, or over `all` positions as published, where padding adds 0
            but counts.

    Source: https://arxiv.org/abs/2102.03902

    >>> from attention_core import SelfAttention
    >>> size = NetworkSize(num_features=11, num_classes=4, max_length=5, dim=8, ffn_dim=16,
    ...                    num_layers=2, dropout=0.0)
    >>> model = TokenClassifier(size, lambda layer: SelfAttention(8, 2))
    >>> model(*model.example_inputs(11, 5, batch_size=2)).shape
    torch.Size([2, 4])
    """

    IS_PAIR: ClassVar[bool] = False  # the head then receives four vectors of size D

    def __init__(
        self,
        size: NetworkSize,
        attention: BuildAttention,
        mask_attention: bool = True,
        pool: Literal["valid", "all"] = "valid",
    ) -> None:
        if pool not in ("valid", "all"):
            raise ValueError(f"pool must be valid or all, got {pool!r}")
        embedding = TokenEmbedding(size.num_features, size.dim, size.max_length, size.dropout)
        super().__init__(size, embedding, PreNormBlock, attention, mask_attention)
        self.pool = pool
        self.head = nn.Sequential(
            nn.Linear((4 if self.IS_PAIR else 1) * size.dim, size.ffn_dim),
            nn.ReLU(),
            nn.Linear(size.ffn_dim, size.num_classes),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify."""
        self.check_ids(x)
        return self.head(self.encode_sequence(x, mask))

    def encode_sequence(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the mean (B, D) of the tokens of a sequence, 0 if none is valid."""
        tokens, valid = self.encode_tokens(x, mask), mask.unsqueeze(-1)
        count = x.shape[1] if self.pool == "all" else valid.sum(1).clamp(min=1)
        return (tokens * valid).sum(1) / count

    def check_ids(self, x: Tensor) -> None:
        """Raise ValueError for inputs of another shape, and for anything but ids."""
        if x.ndim != 2 + self.IS_PAIR or x.is_floating_point():
            shape = "(batch, 2, tokens)" if self.IS_PAIR else "(batch, tokens)"
            raise ValueError(
                f"{type(self).__name__} takes ids {shape}, got {tuple(x.shape)} of "
                f"{x.dtype}: pairs take the backbone lra_dual, single sequences lra, series uea"
            )

    def example_inputs(
        self, num_features: int, max_length: int, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return random ids, of the shape that `forward` takes, without padding, and their mask."""
        shape = (batch_size, *[2] * self.IS_PAIR, max_length)
        return torch.randint(1, num_features, shape), torch.ones(shape, dtype=torch.bool)


class PairClassifier(TokenClassifier):
    r"""The same encoder for each of two documents, and a head on their relation.

    .. math:: [x_0,\; x_1,\; x_0 \odot x_1,\; x_0 - x_1]

    Parameters with softmax attention on Retrieval, 512 ids and 4,096 positions: 395,138.

    Shapes: ids x (B, 2, N), mask (B, 2, N) -> logits (B, C).

    Source: https://arxiv.org/abs/2102.03902
    """

    IS_PAIR = True

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify."""
        self.check_ids(x)
        both = self.encode_sequence(x.flatten(0, 1), mask.flatten(0, 1))  # (2B, D)
        first, second = both.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([first, second, first * second, first - second], -1))
