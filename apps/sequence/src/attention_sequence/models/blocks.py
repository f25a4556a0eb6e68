"""The size and the layers of the encoders. Shapes: B batch, N steps or tokens, D dim."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
        self.embedding = embedding
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

    def monitored_layers(self) -> Sequence[nn.Module]:
        """Return the modules whose outputs are tokens, in order of depth."""
        return [self.embedding, *self.blocks]
