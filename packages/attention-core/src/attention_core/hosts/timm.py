"""Adapters for timm, https://github.com/huggingface/pytorch-image-models"""

from timm.layers.attention import Attention
from torch import Tensor

from attention_core.attach import Filtered
from attention_core.operators import Softmax


class FilteredAttention(Filtered, Attention):
    """timm's ViT and DeiT attention with a filter.

    The filter sees all tokens, class token included. timm drops entries of the map it applies,
    and so does this one, with a fresh mask at each application: the released GFSA code drops
    entries of H instead, which is the same at the recipes' attn_drop = 0.

    Shapes: x (B, N, D) -> (B, N, D).

    Source: https://github.com/huggingface/pytorch-image-models/blob/main/timm/layers/attention.py

    >>> FilteredAttention.stock.__name__
    'Attention'
    """

    stock = Attention

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend as timm does, with the filter between the map and the values."""
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        dropout = self.attn_drop.p if self.training else 0.0
        A = Softmax(self.q_norm(q), self.k_norm(k), attn_mask, is_causal, dropout)
        y = self.norm(self.filter(A, v).transpose(1, 2).reshape(B, N, self.attn_dim))
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(y))
