"""Graphormer (Ying et al. 2021), https://arxiv.org/abs/2106.05234

Shapes: B graphs, N atoms at most, D width; token 0 is the virtual node.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from attention_core import SelfAttention
from torch import Tensor, nn

from attention_graph.encodings import Batch
from attention_graph.models.bias import AttentionBias, Fidelity

Attention = Callable[[int], SelfAttention]  # of a layer


class Size(NamedTuple):
    """What data and config ask of the network."""

    atom_rows: int
    bond_rows: int
    width: int
    heads: int
    depth: int
    hidden: int
    distances: int
    degrees: int
    max_hops: int
    hop_rows: int


class AtomEmbedding(nn.Module):
    r"""Atoms as tokens, with their centrality, behind the virtual node.

    .. math:: h_i = \sum_f x_{if} + z^-_{\deg^-(i)} + z^+_{\deg^+(i)}

    Degrees above the table's share its last row.

    Shapes: a `Batch` -> (B, N + 1, D).

    Source: eq. 5 of https://arxiv.org/abs/2106.05234
    """

    def __init__(self, rows: int, degrees: int, width: int) -> None:
        super().__init__()
        self.atom = nn.Embedding(rows, width, padding_idx=0)
        # row 0 learns, as atoms without a bond have it; so has padding, which none attends to
        self.in_degree = nn.Embedding(degrees, width)
        self.out_degree = nn.Embedding(degrees, width)
        self.virtual = nn.Embedding(1, width)

    def forward(self, batch: Batch) -> Tensor:
        """Embed."""
        degrees = batch.degrees.clamp(max=self.in_degree.num_embeddings - 1)
        x = self.atom(batch.atoms).sum(-2)
        x = x + self.in_degree(degrees[..., 0]) + self.out_degree(degrees[..., 1])
        return torch.cat([self.virtual.weight.expand(len(x), 1, -1), x], 1)


class Layer(nn.Module):
    """One pre-LN layer: attention, then two maps with a GELU, each with dropout and residual.

    >>> attention = SelfAttention(8, 2)
    >>> Layer(8, attention, hidden=16, dropout=0.0)(torch.zeros(3, 5, 8), None, None).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, attention: SelfAttention, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor | None, real: Tensor | None) -> Tensor:
        """Encode; `bias` is added to the logits, `real` (B, N) says which tokens are."""
        x = x + self.dropout(self.attention(self.norm1(x), bias, valid_mask=real))
        return x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))))


class Graphormer(nn.Module):
    """A Transformer on graphs, read out at its virtual node; `attention` makes that of layer i.

    Linear maps start as N(0, 0.02 / sqrt(depth)), tables as N(0, 0.02). Parameters of the slim
    one on ZINC: 489,481, and 96 more with GFSA; of the base one on PCQM4M: 47,085,377.

    Shapes: a `Batch` -> (B,).

    Source: https://arxiv.org/abs/2106.05234
    """

    def __init__(
        self,
        size: Size,
        attention: Attention,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        fidelity: Fidelity = "right",
    ) -> None:
        super().__init__()
        self.embedding = AtomEmbedding(size.atom_rows, size.degrees, size.width)
        self.bias = AttentionBias(
            size.heads, size.bond_rows, size.distances, size.max_hops, size.hop_rows, fidelity
        )
        self.dropout = nn.Dropout(input_dropout)
        self.blocks = nn.ModuleList(
            Layer(size.width, attention(layer), size.hidden, dropout) for layer in range(size.depth)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, 1)
        self._initialise(size.depth, fidelity)

    def _initialise(self, depth: int, fidelity: Fidelity) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 * depth**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if fidelity == "right":  # of the tables with padding, this one's is seen
            nn.init.zeros_(self.bias.bond.weight[0])

    def forward(self, batch: Batch) -> Tensor:
        """Predict one number a graph."""
        bias, real = self.bias(batch), nn.functional.pad(batch.mask, (1, 0), value=True)
        x = self.dropout(self.embedding(batch))
        for block in self.blocks:
            x = block(x, bias, real)
        return self.head(self.norm(x[:, 0])).squeeze(-1)

    def layers(self) -> Sequence[nn.Module]:
        """The modules that put out tokens, in order of depth."""
        return [self.embedding, *self.blocks]
