"""Adapters for timm, https://github.com/huggingface/pytorch-image-models

Each follows its host step by step, so that it is the host bit for bit where the filter is Plain.
timm drops entries of the map that it applies, and so do these, the fused one with a fresh mask at
each application; the released GFSA code drops entries of H, the same at the recipes' attn_drop 0.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from attention_core.attach import Filtered
from attention_core.kernels.parts import readout
from attention_core.operators import Host, Softmax

Attend = Callable[[Tensor], Tensor]


class FilteredAttention(Filtered, Attention):
    """timm's ViT and DeiT attention with a filter, and with a kernel where it has one.

    The filter sees all tokens, class token included.

    Shapes: x (B, N, D) -> (B, N, D).

    Source: https://github.com/huggingface/pytorch-image-models/blob/main/timm/layers/attention.py

    >>> FilteredAttention.stock.__name__
    'Attention'
    """

    stock = Attention
    slots = ("filter", "kernel")

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend as timm does, with the filter between the map and the values."""
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        dropout = self.attn_drop.p if self.training else 0.0
        if self.kernel is None:
            A = Softmax(q, k, attn_mask, is_causal, dropout)
        elif is_causal:
            raise ValueError(f"{type(self.kernel).__name__} is bidirectional: it cannot be causal")
        else:
            A = self.kernel(q, k, x, attn_mask)
        y = readout(self.kernel, self.filter(A, v)).transpose(1, 2)
        y = self.norm(y.reshape(B, N, self.attn_dim))
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(y))


class FilteredTalkingHeads(Filtered, TalkingHeadAttn):
    """CaiT's attention with a filter of the map whose heads have been mixed after the softmax.

    Its rows do not sum to 1 and its entries may be negative, so the map is dense. The class
    attention of CaiT is another class and stays plain.

    Shapes: x (B, N, D) -> (B, N, D), patches alone.

    Source: https://github.com/huggingface/pytorch-image-models/blob/main/timm/models/cait.py

    >>> FilteredTalkingHeads.stock.__name__
    'TalkingHeadAttn'
    """

    stock = TalkingHeadAttn

    def forward(self, x: Tensor) -> Tensor:
        """Attend as timm does, with the filter between the mixed map and the values."""
        B, N, D = x.shape
        heads = (self.num_heads, D // self.num_heads)  # -1 is open where there are no images
        qkv = self.qkv(x).reshape(B, N, 3, *heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        A = _mix(self.proj_l, q @ k.mT).softmax(-1)
        A = self.attn_drop(_mix(self.proj_w, A))
        y = self.filter(A, v).transpose(1, 2).reshape(B, N, D)
        return self.proj_drop(self.proj(y))


class FilteredWindows(Filtered, WindowAttention):
    """Swin's attention with a filter inside each window.

    The mask of shifted windows is soft, -100, so A^2 stays inside a region but for e^-100; the
    average over the allowed keys, which AttnScale and centered attention take, respects it.

    Shapes: x (B windows, N, D) -> (B windows, N, D), mask (windows, N, N) of 0 and -100.

    Source: https://github.com/huggingface/pytorch-image-models/blob/main/timm/models/swin_transformer.py

    >>> FilteredWindows.stock.__name__
    'WindowAttention'
    """

    stock = WindowAttention

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend as timm does, with the filter between the map of each window and the values."""
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attend = self._fused(q, k, mask) if self.fused_attn else self._dense(q, k, mask)
        A = Host(attend, like=v, average=None if mask is None else partial(_inside, mask == 0))
        y = self.filter(A, v).transpose(1, 2).reshape(B, N, -1)
        return self.proj_drop(self.proj(y))

    def _dense(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Attend:
        logits = q * self.scale @ k.mT + self._get_rel_pos_bias()
        A = self.attn_drop(self.softmax(_over_windows(logits, mask)))
        return A.__matmul__

    def _fused(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Attend:
        bias = self._get_rel_pos_bias().expand(len(q), -1, -1, -1)
        dropout = self.attn_drop.p if self.training else 0.0
        attend = F.scaled_dot_product_attention
        return lambda v: attend(q, k, v, _over_windows(bias, mask), dropout)


def _mix(heads: nn.Module, maps: Tensor) -> Tensor:
    return heads(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _over_windows(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    return (logits.view(-1, len(mask), *logits.shape[1:]) + mask.unsqueeze(1)).flatten(0, 1)


def _inside(allowed: Tensor, v: Tensor) -> Tensor:
    J = allowed.to(v.dtype) / allowed.sum(-1, keepdim=True)
    return (J.unsqueeze(1) @ v.reshape(-1, len(J), *v.shape[1:])).flatten(0, 1)
