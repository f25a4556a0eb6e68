"""What the networks of this app are made of: their size, and the layers of an encoder.

Shapes: B batch, N steps or tokens, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

from attention_core import SelfAttention
from torch import Tensor, nn

Attention = Callable[[int], SelfAttention]  # of a layer


class Size(NamedTuple):
    """What data and config ask of a network; `features` is how many ids there are of tokens."""

    features: int
    classes: int
    length: int
    width: int
    hidden: int
    depth: int
    dropout: float


class Block(nn.Module):
    """One post-LN layer: attention, then two maps with a GELU, each with residual and LayerNorm.

    >>> import torch
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
        return self.norm2(x + self._mlp(x))

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.up(x)))
        return self.dropout(self.down(hidden))


class PreNormBlock(Block):
    """One pre-LN layer: LayerNorm comes before attention and before the two maps.

    >>> import torch
    >>> PreNormBlock(8, SelfAttention(8, 2), hidden=16, dropout=0.0)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode; `mask` (B, N) is True where a token is real."""
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self._mlp(self.norm2(x))
