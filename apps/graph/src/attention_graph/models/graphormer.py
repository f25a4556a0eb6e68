"""Graphormer (Ying et al. 2021), https://arxiv.org/abs/2106.05234

Shapes: B graphs of at most N atoms, D = dim; token 0 is the virtual node.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from attention_core import SelfAttention
from torch import Tensor, nn

from attention_graph.encodings import Batch, Variant
from attention_graph.models.bias import AttentionBias


class GraphormerConfig(NamedTuple):
    """Sizes of the network and of its tables."""

    atom_rows: int
    bond_rows: int
    dim: int
    num_heads: int
    num_layers: int
    ffn_dim: int
    distances: int
    degrees: int
    max_hops: int
    hop_rows: int


class AtomEmbedding(nn.Module):
    r"""Tokens of atoms, with their degrees, after the virtual node.

    .. math:: h_i = \sum_f x_{if} + z^-_{\deg^-(i)} + z^+_{\deg^+(i)}

    Degrees above the table's share its last row.

    Shapes: a `Batch` -> (B, N + 1, D).

    Source: eq. 5 of https://arxiv.org/abs/2106.05234
    """

    def __init__(self, rows: int, degrees: int, dim: int) -> None:
        super().__init__()
        self.atom = nn.Embedding(rows, dim, padding_idx=0)
        # row 0 learns: atoms without a bond have it; so does padding, which no token attends to
        self.in_degree = nn.Embedding(degrees, dim)
        self.out_degree = nn.Embedding(degrees, dim)
        self.virtual = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Tensor:
        """Embed the atoms of a batch."""
        degrees = batch.degrees.clamp(max=self.in_degree.num_embeddings - 1)
        x = self.atom(batch.atoms).sum(-2)  # (B, N, F, D) -> (B, N, D)
        x = x + self.in_degree(degrees[..., 0]) + self.out_degree(degrees[..., 1])
        return torch.cat([self.virtual.weight.expand(len(x), 1, -1), x], 1)


class GraphormerLayer(nn.Module):
    """One pre-LN layer: attention, then an MLP with a GELU, each with dropout and residual."""

    def __init__(self, dim: int, attention: SelfAttention, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor | None, valid_mask: Tensor | None) -> Tensor:
        """Apply the layer; `bias` is added to the logits, `valid_mask` (B, N) excludes padding."""
        x = x + self.dropout(self.attention(self.norm1(x), bias, valid_mask=valid_mask))
        return x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))))


class Graphormer(nn.Module):
    """A Transformer on graphs, read out at its virtual node; `attention(i)` makes that of layer i.

    Linear maps start as N(0, 0.02 / sqrt(num_layers)), tables as N(0, 0.02). The slim network has
    489,481 parameters on ZINC, and 96 more with GFSA; the base network 47,085,377 on PCQM4M.

    Shapes: a `Batch` -> (B,).

    Source: https://arxiv.org/abs/2106.05234
    """

    def __init__(
        self,
        config: GraphormerConfig,
        attention: Callable[[int], SelfAttention],
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        variant: Variant = "corrected",
    ) -> None:
        super().__init__()
        c = config
        self.embedding = AtomEmbedding(c.atom_rows, c.degrees, c.dim)
        self.bias = AttentionBias(
            c.num_heads, c.bond_rows, c.distances, c.max_hops, c.hop_rows, variant
        )
        self.dropout = nn.Dropout(input_dropout)
        self.blocks = nn.ModuleList(
            GraphormerLayer(c.dim, attention(layer), c.ffn_dim, dropout)
            for layer in range(c.num_layers)
        )
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, 1)
        self._init_weights(c.num_layers, variant)

    def _init_weights(self, num_layers: int, variant: Variant) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 * num_layers**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if variant == "corrected":  # the padding of the other tables is never seen
            nn.init.zeros_(self.bias.bond.weight[0])

    def forward(self, batch: Batch) -> Tensor:
        """Predict one number for each graph."""
        bias = self.bias(batch)
        valid_mask = nn.functional.pad(batch.mask, (1, 0), value=True)  # (B, N + 1)
        x = self.dropout(self.embedding(batch))
        for block in self.blocks:
            x = block(x, bias, valid_mask)
        return self.head(self.norm(x[:, 0])).squeeze(-1)
