"""What convolutions see behind the end of an utterance: itself, whatever it is padded with."""

from typing import Any

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoderLayer
from torch import Tensor


def reflected(x: Tensor, lengths: Tensor, reach: int) -> Tensor:
    """Frames (B, T + reach, ...) in which what is real is followed by its own reflection.

    So speechbrain's convolutions pad the longest utterance of a batch. The others they let see
    the frames behind them, so that results depend on what an utterance is put together with.

    >>> reflected(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([3]), 2)
    tensor([[1., 2., 3., 2., 1., 0.]])
    """
    steps = torch.arange(reach, device=x.device)
    rows = torch.arange(len(x), device=x.device)[:, None]
    behind = x[rows, (lengths[:, None] - 2 - steps).clamp(min=0)]
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, reach))
    return x.index_put((rows, lengths[:, None] + steps), behind)


class MaskedBranchformerLayer(BranchformerEncoderLayer):
    """speechbrain's layer, whose convolution sees the reflection of an utterance behind its end.

    Equal to the library's where nothing is padded; there utterances of less than half the kernel
    cannot be convolved at all, and padding changes the others.

    Source: https://arxiv.org/abs/2207.02971

    >>> layer = MaskedBranchformerLayer(8, 2, kernel_size=5, csgu_linear_units=12)
    >>> layer(torch.ones(1, 2, 8), pos_embs=torch.ones(1, 3, 8))[0].shape
    torch.Size([1, 2, 8])
    """

    def forward(
        self,
        x: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        pos_embs: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Merge what is attended to and what is convolved; masks are True where ignored."""
        size = x.shape[1]
        if src_key_padding_mask is None:
            src_key_padding_mask = x.new_zeros(x.shape[:2], dtype=torch.bool)
        lengths = (~src_key_padding_mask).sum(1)
        h = self.norm_mhsa(x)
        attended, weights = self.mha_layer(
            h, h, h, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, pos_embs=pos_embs
        )
        reach = self.convolution_branch.csgu.conv.kernel_size // 2
        beside = reflected(self.norm_conv(x), lengths, reach)
        convolved = self.convolution_branch(beside)[:, :size]
        both = torch.cat([self.dropout(attended), self.dropout(convolved)], dim=-1)
        return x + self.dropout(self.merge_proj(both)), weights
