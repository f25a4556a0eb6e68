"""The encoder of the UEA experiments: post-LN, learned positions, a flattening head.

As Zerveas et al. 2021 (https://arxiv.org/abs/2010.02803) and Flowformer
(https://arxiv.org/abs/2202.06258) train it. Shapes: B batch, N steps, F features, D dim.
"""

import torch
from torch import Tensor, nn

from attention_sequence.models.blocks import Block, BuildAttention, Encoder, NetworkSize


class SeriesEmbedding(nn.Module):
    r"""Project each step and add its learned position.

    .. math:: \sqrt D (x W + b) + p, \qquad p \sim U(-0.02, 0.02)

    Shapes: (B, N, F) -> (B, N, D), N at most `max_length`.
    """

    def __init__(self, num_features: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(num_features, dim)
        self.position = nn.Parameter(torch.empty(max_length, dim).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        dim, steps = self.position.shape[1], x.shape[1]
        return self.dropout(self.project(x) * dim**0.5 + self.position[:steps])


class SeriesClassifier(Encoder):
    """Embedding, blocks, and a linear head on all steps concatenated, with padding set to zero.

    Parameters with AGF at JapaneseVowels' size, 12 features and 29 steps: 6,986,259.

    Shapes: x (B, N, F), mask (B, N) -> logits (B, C); N is exactly `max_length`.

    Raises ValueError for token ids.

    Source: https://arxiv.org/abs/2010.02803

    >>> from attention_core import SelfAttention
    >>> size = NetworkSize(num_features=3, num_classes=4, max_length=5, dim=8, ffn_dim=16,
    ...                    num_layers=2, dropout=0.0)
    >>> model = SeriesClassifier(size, lambda layer: SelfAttention(8, 2))
    >>> model(*model.example_inputs(3, 5, batch_size=2)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, size: NetworkSize, attention: BuildAttention, mask_attention: bool = True
    ) -> None:
        embedding = SeriesEmbedding(size.num_features, size.dim, size.max_length, size.dropout)
        super().__init__(size, embedding, Block, attention, mask_attention)
        self.out = nn.Sequential(nn.GELU(), nn.Dropout(size.dropout))
        self.head = nn.Linear(size.max_length * size.dim, size.num_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Classify; the head never sees padding, the attention may (as published)."""
        if x.ndim != 3 or not x.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes series (batch, steps, features), got "
                f"{tuple(x.shape)} of {x.dtype}: token ids take the backbone lra or lra_dual"
            )
        x = self.out(self.encode_tokens(x, mask)) * mask.unsqueeze(-1)  # (B, N, D)
        return self.head(x.flatten(1))

    def example_inputs(
        self, num_features: int, max_length: int, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return random series (B, N, F) without padding, and their mask (B, N)."""
        x = torch.randn(batch_size, max_length, num_features)
        return x, torch.ones(batch_size, max_length, dtype=torch.bool)
