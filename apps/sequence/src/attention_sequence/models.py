"""The encoder of the UEA experiments: post-LN, learned positions, a flattening head.

As Zerveas et al. 2021 (https://arxiv.org/abs/2010.02803) and Flowformer
(https://arxiv.org/abs/2202.06258) train it. Shapes: B batch, N steps, F features, D width.
"""

from collections.abc import Callable, Sequence

import torch
from attention_core import SelfAttention
from torch import Tensor, nn


class Embedding(nn.Module):
    r"""Project each step and add its learned position.

    .. math:: \sqrt D (x W + b) + p, \qquad p \sim U(-0.02, 0.02)

    Shapes: (B, N, F) -> (B, N, D), N at most `length`.

    >>> Embedding(3, 8, length=5, dropout=0.0)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, features: int, width: int, length: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.position = nn.Parameter(torch.empty(length, width).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        width, steps = self.position.shape[1], x.shape[1]
        return self.dropout(self.project(x) * width**0.5 + self.position[:steps])


class Block(nn.Module):
    """One post-LN layer: attention, then two maps with a GELU, each with residual and LayerNorm.

    >>> Block(8, SelfAttention(8, 2), hidden=16, dropout=0.0)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, attention: SelfAttention, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode; `mask` (B, N) is True where a step is real."""
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        hidden = self.dropout(self.activation(self.up(x)))
        return self.norm2(x + self.dropout(self.down(hidden)))


class Classifier(nn.Module):
    """Embedding, blocks, and a linear head on all steps laid side by side, padding zeroed.

    `attention` makes the attention of layer i. Parameters with AGF at JapaneseVowels' size, 12
    features and 29 steps: 6,986,259.

    Shapes: x (B, N, F), mask (B, N) -> logits (B, C); N is exactly `length`.

    >>> model = Classifier(3, 4, 5, 8, 16, 2, 0.0, attention=lambda layer: SelfAttention(8, 2))
    >>> model(torch.zeros(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        length: int,
        width: int,
        hidden: int,
        depth: int,
        dropout: float,
        attention: Callable[[int], SelfAttention],
        mask_attention: bool = True,
    ) -> None:
        super().__init__()
        self.mask_attention = mask_attention
        self.embedding = Embedding(features, width, length, dropout)
        self.blocks = nn.ModuleList(
            Block(width, attention(layer), hidden, dropout) for layer in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Sequential(nn.GELU(), nn.Dropout(dropout))
        self.head = nn.Linear(length * width, classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify; the head never sees padding, the attention may (as published)."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, mask if self.mask_attention else None)
        return self.head((self.out(self.norm(x)) * mask.unsqueeze(-1)).flatten(1))

    def layers(self) -> Sequence[nn.Module]:
        """The modules that put out tokens, in order of depth."""
        return [self.embedding, *self.blocks]
