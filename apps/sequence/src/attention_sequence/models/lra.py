"""The encoder of the Long Range Arena: pre-LN, learned positions, the mean of the tokens.

As Nystromformer (https://arxiv.org/abs/2102.03902), Primalformer and AGF train it. Shapes: B batch,
N tokens, D dim, C classes.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from attention_sequence.models.blocks import BuildAttention, Encoder, NetworkSize, PreNormBlock


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
            raise ValueError(
                f"the model has {len(self.position)} positions, the sequences {x.shape[1]} tokens"
            )
        return self.dropout(self.token(x) + self.position[: x.shape[1]])


class TokenClassifier(Encoder):
    r"""Embedding, pre-LN blocks, LayerNorm, the mean of the tokens, and a head of two layers.

    `pool` is the mean over `valid` tokens, or over `all` positions as published, where padding
    adds 0 but counts. Parameters with softmax attention on ListOps, 32 ids and 2,048 positions:
    209,802.

    Shapes: ids x (B, N), mask (B, N), True where a token is valid -> logits (B, C).

    Raises ValueError for another `pool`, for anything but ids, and for too long a sequence.

    Source: https://arxiv.org/abs/2102.03902

    >>> from attention_core import SelfAttention
    >>> size = NetworkSize(num_features=11, num_classes=4, max_length=5, dim=8, ffn_dim=16,
    ...                    num_layers=2, dropout=0.0)
    >>> model = TokenClassifier(size, lambda layer: SelfAttention(8, 2))
    >>> model(*model.example_inputs(11, 5, batch_size=2)).shape
    torch.Size([2, 4])
    """

    INPUT_SHAPE: ClassVar[str] = "(batch, tokens)"
    HEAD_INPUTS: ClassVar[int] = 1  # vectors of size D that the head receives

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
            nn.Linear(self.HEAD_INPUTS * size.dim, size.ffn_dim),
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
        if x.ndim != self.INPUT_SHAPE.count(",") + 1 or x.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes ids {self.INPUT_SHAPE}, got {tuple(x.shape)} of "
                f"{x.dtype}: pairs take the backbone lra_dual, single sequences lra, series uea"
            )

    def example_inputs(
        self, num_features: int, max_length: int, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return random ids, of the shape that `forward` takes, without padding, and their mask."""
        shape = (batch_size, 2, max_length)[:: 1 if "2" in self.INPUT_SHAPE else 2]
        return torch.randint(1, num_features, shape), torch.ones(shape, dtype=torch.bool)


class PairClassifier(TokenClassifier):
    r"""The same encoder for each of two documents, and a head on their relation.

    .. math:: [x_0,\; x_1,\; x_0 \odot x_1,\; x_0 - x_1]

    Parameters with softmax attention on Retrieval, 512 ids and 4,096 positions: 395,138.

    Shapes: ids x (B, 2, N), mask (B, 2, N) -> logits (B, C).

    Source: https://arxiv.org/abs/2102.03902
    """

    INPUT_SHAPE: ClassVar[str] = "(batch, 2, tokens)"
    HEAD_INPUTS: ClassVar[int] = 4

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify."""
        self.check_ids(x)
        both = self.encode_sequence(x.flatten(0, 1), mask.flatten(0, 1))  # (2B, D)
        first, second = both.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([first, second, first * second, first - second], -1))
