"""The encoder of the Long Range Arena: pre-LN, learned positions, the mean of the tokens.

As Nystromformer (https://arxiv.org/abs/2102.03902), Primalformer and AGF train it. Shapes: B batch,
N tokens, D width, C classes.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from attention_sequence.models.blocks import Attention, PreNormBlock, Size


class TokenEmbedding(nn.Module):
    r"""A vector for each token, plus one for its place, both from N(0, 0.02^2).

    Shapes: ids (B, N) -> (B, N, D), N at most `length`.

    Raises ValueError for a longer sequence.

    >>> TokenEmbedding(11, 8, length=5, dropout=0.0)(torch.zeros(2, 3, dtype=torch.long)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, ids: int, width: int, length: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(ids, width)
        self.position = nn.Parameter(torch.empty(length, width).normal_(0, 0.02))
        nn.init.normal_(self.token.weight, 0, 0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        if x.shape[1] > len(self.position):
            raise ValueError(
                f"the model has {len(self.position)} positions, the sequences {x.shape[1]} tokens"
            )
        return self.dropout(self.token(x) + self.position[: x.shape[1]])


class TokenClassifier(nn.Module):
    r"""Embedding, pre-LN blocks, LayerNorm, the mean of the tokens, and a head of two layers.

    The mean is over `real`
    tokens, or over `all` positions as published, where padding is 0 but counts. Parameters with
    softmax attention on ListOps, 32 ids and 2,048 positions: 209,802.

    Shapes: ids x (B, N), mask (B, N), True where a token is real -> logits (B, C).

    Raises ValueError for another mean, for anything but ids, and for too long a sequence.

    Source: https://arxiv.org/abs/2102.03902

    >>> size = Size(features=11, classes=4, length=5, width=8, hidden=16, depth=2, dropout=0.0)
    >>> from attention_core import SelfAttention
    >>> model = TokenClassifier(size, attention=lambda layer: SelfAttention(8, 2))
    >>> model(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 4])
    """

    documents: ClassVar[int] = 1
    combined: ClassVar[int] = 1  # vectors that the head sees

    def __init__(
        self,
        size: Size,
        attention: Attention,
        mask_attention: bool = True,
        pool: Literal["real", "all"] = "real",
    ) -> None:
        super().__init__()
        if pool not in ("real", "all"):
            raise ValueError(f"pool must be real or all, got {pool!r}")
        self.mask_attention, self.pool = mask_attention, pool
        self.embedding = TokenEmbedding(size.features, size.width, size.length, size.dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(size.width, attention(layer), size.hidden, size.dropout)
            for layer in range(size.depth)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Sequential(
            nn.Linear(self.combined * size.width, size.hidden),
            nn.ReLU(),
            nn.Linear(size.hidden, size.classes),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify."""
        self._check(x)
        return self.head(self.encode(x, mask))

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """The mean (B, D) of the tokens of a sequence, 0 where none is real."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, mask if self.mask_attention else None)
        real = mask.unsqueeze(-1)
        count = x.shape[1] if self.pool == "all" else real.sum(1).clamp(min=1)
        return (self.norm(x) * real).sum(1) / count

    def _check(self, x: Tensor) -> None:
        if x.ndim != (2 if self.documents == 1 else 3) or x.is_floating_point():
            expected = "(batch, tokens)" if self.documents == 1 else "(batch, 2, tokens)"
            raise ValueError(
                f"{type(self).__name__} takes ids {expected}, got {tuple(x.shape)} of {x.dtype}: "
                "pairs take the backbone lra_dual, single sequences lra, series uea"
            )

    def layers(self) -> Sequence[nn.Module]:
        """The modules that put out tokens, in order of depth."""
        return [self.embedding, *self.blocks]


class PairClassifier(TokenClassifier):
    r"""The same encoder for both of two documents, and a head that sees how they relate.

    .. math:: [x_0,\; x_1,\; x_0 \odot x_1,\; x_0 - x_1]

    Parameters with softmax attention on Retrieval, 512 ids and 4,096 positions: 395,138.

    Shapes: ids x (B, 2, N), mask (B, 2, N) -> logits (B, C).

    Source: https://arxiv.org/abs/2102.03902

    >>> size = Size(features=11, classes=4, length=5, width=8, hidden=16, depth=2, dropout=0.0)
    >>> from attention_core import SelfAttention
    >>> model = PairClassifier(size, attention=lambda layer: SelfAttention(8, 2))
    >>> x = torch.ones(3, 2, 5, dtype=torch.long)
    >>> model(x, x > 0).shape
    torch.Size([3, 4])
    """

    documents: ClassVar[int] = 2
    combined: ClassVar[int] = 4

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify."""
        self._check(x)
        both = self.encode(x.flatten(0, 1), mask.flatten(0, 1))
        first, second = both.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([first, second, first * second, first - second], -1))
