"""Graphormer (Ying et al. 2021), https://arxiv.org/abs/2106.05234

Shapes: B graphs of at most N atoms, D = dim; token 0 is the virtual node.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from attention_core import SelfAttention
from torch import Tensor, nn

from attention_graph.encodings.batch import Batch
from attention_graph.encodings.paths import Variant
from attention_graph.models.paths import AttentionBias

Version = Literal["v1", "main"]


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
    """Attention, then an MLP with a GELU, each with dropout and residual.

    The norms are before both in version `v1`, after both residual sums in version `main`.
    `activation_dropout` acts inside the MLP.
    """

    def __init__(
        self,
        dim: int,
        attention: SelfAttention,
        ffn_dim: int,
        dropout: float,
        activation_dropout: float = 0.0,
        version: Version = "v1",
    ) -> None:
        super().__init__()
        self.attention, self.version = attention, version
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)
        self.activation_dropout = nn.Dropout(activation_dropout)

    def forward(self, x: Tensor, bias: Tensor | None, valid_mask: Tensor | None) -> Tensor:
        """Apply the layer; `bias` is added to the logits, `valid_mask` (B, N) excludes padding."""
        if self.version == "main":
            x = self.norm1(x + self.dropout(self.attention(x, bias, valid_mask=valid_mask)))
            return self.norm2(x + self.dropout(self._transform(x)))
        x = x + self.dropout(self.attention(self.norm1(x), bias, valid_mask=valid_mask))
        return x + self.dropout(self._transform(self.norm2(x)))

    def _transform(self, x: Tensor) -> Tensor:
        return self.down(self.activation_dropout(self.activation(self.up(x))))


class TransformHead(nn.Module):
    r"""The head of upstream's main branch, taken from masked language models.

    .. math:: y = w^\top \mathrm{LN}(\mathrm{GELU}(W x + b)) + c

    Upstream's unused pooler is kept, so that the number of parameters is the published one. It has
    a gradient of zero, because DDP waits for that of every parameter.

    Shapes: tokens (B, D) -> (B, 1).

    Source: https://github.com/microsoft/Graphormer, graphormer/models/graphormer.py
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pooler, self.transform = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.activation, self.norm = nn.GELU(), nn.LayerNorm(dim)
        self.output = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute one number for each token."""
        y = self.output(self.norm(self.activation(self.transform(x))))
        return y + 0 * self.pooler(x).sum(-1, keepdim=True) if self.training else y


class Graphormer(nn.Module):
    """A Transformer on graphs, read out at its virtual node; `attention(i)` makes that of layer i.

    Version `v1` is upstream's release of the ZINC script. It is pre-LN, and its linear maps start
    as N(0, 0.02 / sqrt(num_layers)): slim has 489,481 parameters on ZINC, and 96 more with GFSA.
    Version `main` is upstream's of the PCQM4M scripts. It is post-LN with a norm of the embedding
    and a `TransformHead`, and all starts as N(0, 0.02): base has 48,268,097 parameters on PCQM4M.

    Shapes: a `Batch` -> (B,).

    Source: https://arxiv.org/abs/2106.05234 and https://github.com/microsoft/Graphormer
    """

    def __init__(
        self,
        config: GraphormerConfig,
        attention: Callable[[int], SelfAttention],
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        variant: Variant = "corrected",
        activation_dropout: float = 0.0,
        version: Version = "v1",
    ) -> None:
        super().__init__()
        c = config
        self.embedding = AtomEmbedding(c.atom_rows, c.degrees, c.dim)
        self.bias = AttentionBias(
            c.num_heads, c.bond_rows, c.distances, c.max_hops, c.hop_rows, variant
        )
        self.dropout = nn.Dropout(input_dropout)
        self.blocks = nn.ModuleList(
            GraphormerLayer(
                c.dim, attention(layer), c.ffn_dim, dropout, activation_dropout, version
            )
            for layer in range(c.num_layers)
        )
        self.norm = nn.LayerNorm(c.dim)  # for the output in v1, for the embedding in main
        self.version = version
        self.head = nn.Linear(c.dim, 1) if version == "v1" else TransformHead(c.dim)
        self._init_weights(0.02 * (c.num_layers**-0.5 if version == "v1" else 1), variant)

    def _init_weights(self, std: float, variant: Variant) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
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
        x = self.embedding(batch)
        x = self.dropout(self.norm(x) if self.version == "main" else x)
        for block in self.blocks:
            x = block(x, bias, valid_mask)
        last = x[:, 0] if self.version == "main" else self.norm(x[:, 0])
        return self.head(last).squeeze(-1)
