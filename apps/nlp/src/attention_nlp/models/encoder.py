"""The encoder of Crammed BERT (Geiping and Goldstein 2023), https://arxiv.org/abs/2212.14034

Pre-LN, without biases except those of its norms. Shapes: B texts of N tokens, D wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from attention_core import SelfAttention
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from attention_nlp.tasks.base import Facts

STD = 0.02  # of all weights at the start


@dataclass(frozen=True)
class Options:
    """The size of a network; `hidden` counts both halves of the GLU, `length` the positions.

    `dropout`, of embedding, attention and both branches, is by default 0 in pre-training and 0.1
    in fine-tuning. Raises ValueError for sizes that do not fit together.

    >>> Options(width=7)
    Traceback (most recent call last):
    ValueError: model.options: width must be even and divisible by the 12 heads, got 7
    """

    depth: int = 16
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    length: int = 128
    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads or self.width % 2:
            raise ValueError(
                f"model.options: width must be even and divisible by the {self.heads} heads, "
                f"got {self.width}"
            )
        if self.hidden < 2 or self.hidden % 2:
            raise ValueError(f"model.options: hidden must be even, got {self.hidden}")
        if self.depth < 1 or self.length < 1:
            raise ValueError("model.options: depth and length must be at least 1")


class Embedding(nn.Module):
    r"""Words, plus sinusoidal positions scaled by one learned number, normalised.

    .. math:: \mathrm{LN}(w + s p), \qquad p_{i, 2j} = \sin(i \, 10000^{-2j/D}), \quad
        p_{i, 2j+1} = \cos(i \, 10000^{-2j/D}), \quad s_0 = D^{-1/2}

    Shapes: ids (B, N) -> (B, N, D).

    >>> Embedding(11, 8, length=5, pad=0, dropout=0.0)(torch.zeros(2, 3, dtype=torch.long)).shape
    torch.Size([2, 3, 8])
    """

    table: Tensor

    def __init__(self, vocabulary: int, width: int, length: int, pad: int, dropout: float) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width, padding_idx=pad)
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        angle = torch.outer(torch.arange(length), 1e4 ** -(torch.arange(0, width, 2) / width))
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # (length, D)
        self.register_buffer("table", table, persistent=False)
        nn.init.normal_(self.word.weight, std=STD)
        with torch.no_grad():
            self.word.weight[pad].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """Embed."""
        return self.dropout(self.norm(self.word(ids) + self.scale * self.table[: ids.shape[1]]))


class Block(nn.Module):
    r"""Attention, then a GLU, each on normalised tokens and added to them.

    .. math:: x' = x + \mathrm{SA}(\mathrm{LN}\,x), \qquad
        x'' = x' + (u \odot \mathrm{GELU}(g)) W_2, \quad (u, g) = \mathrm{LN}(x') W_1

    `tokens` acts on x', where its position is the residual.

    >>> Block(SelfAttention(8, 2, bias=False), 8, 6, 0.0)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        attention: SelfAttention,
        width: int,
        hidden: int,
        dropout: float,
        tokens: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.attention, self.tokens = attention, tokens
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden // 2, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        drawn = [attention.qkv.weight, attention.proj.weight, self.up.weight, self.down.weight]
        if is_parametrized(attention.proj):  # V and what is made of it are the spectrum's own
            drawn[:2] = [attention.qkv.weight[: 2 * width]]
        for weight in drawn:
            nn.init.normal_(weight, std=STD)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode; `mask` (B, N) is True where a token is real."""
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        if self.tokens is not None:
            x = self.tokens(x, mask)
        linear, gate = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.dropout(self.down(linear * F.gelu(gate)))


class Crammed(nn.Module):
    """Embedding, blocks and a last norm; what stands on it is a head.

    16 blocks with a vocabulary of 32768 are 119,589,889 parameters, 32 are 214,010,881.

    Shapes: ids (B, N), mask (B, N) -> (B, N, D).
    """

    def __init__(
        self, facts: Facts, size: Options, blocks: Sequence[Block], dropout: float
    ) -> None:
        super().__init__()
        self.embedding = Embedding(facts.vocab_size, size.width, size.length, facts.pad, dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)
