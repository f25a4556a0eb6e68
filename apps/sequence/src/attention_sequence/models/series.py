"""The encoder of the UEA experiments: post-LN, learned positions, a flattening head.

As Zerveas et al. 2021 (https://arxiv.org/abs/2010.02803) and Flowformer
(https://arxiv.org/abs/2202.06258) train it. Shapes: B batch, N steps, F features, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attention_sequence.models.blocks import Attention, Block, Size


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


class Classifier(nn.Module):
    """Embedding, blocks, and a linear head on all steps laid side by side, padding zeroed.

    `attention` makes the attention of layer i. Parameters with AGF at JapaneseVowels' size, 12
    features and 29 steps: 6,986,259.

    Shapes: x (B, N, F), mask (B, N) -> logits (B, C); N is exactly `length`.

    Raises ValueError for token ids.

    Source: https://arxiv.org/abs/2010.02803

    >>> size = Size(features=3, classes=4, length=5, width=8, hidden=16, depth=2, dropout=0.0)
    >>> from attention_core import SelfAttention
    >>> model = Classifier(size, attention=lambda layer: SelfAttention(8, 2))
    >>> model(torch.zeros(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 4])
    """

    def __init__(self, size: Size, attention: Attention, mask_attention: bool = True) -> None:
        super().__init__()
        self.mask_attention = mask_attention
        self.embedding = Embedding(size.features, size.width, size.length, size.dropout)
        self.blocks = nn.ModuleList(
            Block(size.width, attention(layer), size.hidden, size.dropout)
            for layer in range(size.depth)
        )
        self.norm = nn.LayerNorm(size.width)
        self.out = nn.Sequential(nn.GELU(), nn.Dropout(size.dropout))
        self.head = nn.Linear(size.length * size.width, size.classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify; the head never sees padding, the attention may (as published)."""
        if x.ndim != 3 or not x.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes series (batch, steps, features), got "
                f"{tuple(x.shape)} of {x.dtype}: token ids take the backbone lra or lra_dual"
            )
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, mask if self.mask_attention else None)
        return self.head((self.out(self.norm(x)) * mask.unsqueeze(-1)).flatten(1))

    def layers(self) -> Sequence[nn.Module]:
        """The modules that put out tokens, in order of depth."""
        return [self.embedding, *self.blocks]
