"""Make convolutions independent of padding, so that results do not depend on the batch."""

from typing import Any

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoderLayer
from torch import Tensor


def pad_by_reflection(x: Tensor, lengths: Tensor, reach: int) -> Tensor:
    """Append to the valid frames of each utterance their reflection, (B, T + reach, ...).

    speechbrain's convolutions reflect the longest utterance of a batch alone. In the others they
    read the padding.

    >>> pad_by_reflection(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([3]), 2)
    tensor([[1., 2., 3., 2., 1., 0.]])
    """
    steps = torch.arange(reach, device=x.device)
    rows = torch.arange(len(x), device=x.device)[:, None]
    reflection = x[rows, (lengths[:, None] - 2 - steps).clamp(min=0)]
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, reach))
    return x.index_put((rows, lengths[:, None] + steps), reflection)


class MaskedBranchformerLayer(BranchformerEncoderLayer):
    """speechbrain's layer, with a convolution that reads a reflection instead of the padding.

    Equal to speechbrain's without padding. speechbrain's layer cannot convolve utterances shorter
    than half the kernel, and its results depend on padding.

    Source: https://arxiv.org/abs/2207.02971
    """

    def forward(
        self,
        x: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        pos_embs: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Merge the attention and the convolution branch; masks are True where ignored."""
        size = x.shape[1]
        if src_key_padding_mask is None:
            src_key_padding_mask = x.new_zeros(x.shape[:2], dtype=torch.bool)
        lengths = (~src_key_padding_mask).sum(1)
        h = self.norm_mhsa(x)
        attention, weights = self.mha_layer(
            h, h, h, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, pos_embs=pos_embs
        )
        reach = self.convolution_branch.csgu.conv.kernel_size // 2
        h = pad_by_reflection(self.norm_conv(x), lengths, reach)
        convolution = self.convolution_branch(h)[:, :size]
        both = torch.cat([self.dropout(attention), self.dropout(convolution)], dim=-1)
        return x + self.dropout(self.merge_proj(both)), weights
