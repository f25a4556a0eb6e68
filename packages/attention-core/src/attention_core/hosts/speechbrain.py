"""Adapters for the encoders of speechbrain, https://github.com/speechbrain/speechbrain

Decoders stay plain, as published. Dropout acts on the map, as in speechbrain; after
`filters.dropout_on_H` on H, as in the released GFSA code. Without dropout both are the same. A
streaming encoder sees a window of frames, and A^2 is taken inside the window.
"""

from typing import Any

import torch
import torch.nn.functional as F
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL
from torch import Tensor, nn

from attention_core.hosts.adapter import (
    Filtered,
    check_self_attention,
    find_H_dropout,
    form_filtered_map,
)
from attention_core.hosts.hook_points import HookPoint, HostLibrary
from attention_core.operators import Host, Softmax, allowed_pairs


class FilteredSpeechAttention(Filtered, MultiheadAttention):
    """speechbrain's regularMHA with a filter, by fused calls in O(N) memory.

    With `return_attn_weights=True` it also returns the mean of H over heads, else None. Masks are
    True where a frame is ignored, or added to the logits, as pos_embs are.
    """

    host_class = MultiheadAttention
    no_kernel = "its encoders mask pairs of frames"

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads of the torch attention that the host wraps."""
        att = module.att
        if getattr(att, "bias_k", None) is not None or getattr(att, "add_zero_attn", False):
            raise ValueError("an attention with keys of its own has a map that is not square")
        return att.num_heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        return_attn_weights: bool | None = None,
        pos_embs: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Attend as speechbrain does, with the filter between the map and the values."""
        att = self.att
        check_self_attention(query, key, value)
        bias, ignored = _split_masks(attn_mask, key_padding_mask, att.num_heads)
        added, _ = _split_masks(pos_embs, None, att.num_heads)
        if added is not None:
            bias = added if bias is None else bias + added
        mask = bias
        if ignored is not None:
            mask = ~ignored if bias is None else bias.masked_fill(ignored, -torch.inf)
        qkv = F.linear(query, att.in_proj_weight, att.in_proj_bias)
        q, k, v = qkv.view(*query.shape[:2], 3, att.num_heads, att.head_dim).permute(2, 0, 3, 1, 4)
        A = Softmax(q, k, mask, dropout=att.dropout if self.training else 0.0)
        y = att.out_proj(self.filter(A, v).transpose(1, 2).flatten(2))
        maps = form_filtered_map(self.filter, A).mean(1) if return_attn_weights else None
        return y if return_attn_weights is False else (y, maps)


class FilteredRelPosMHAXL(Filtered, RelPosMHAXL):
    r"""speechbrain's attention with relative positions and a filter.

    .. math:: A_{ij} = \mathrm{softmax}_j\,
        \frac{(q_i + u)^\top k_j + (q_i + w)^\top p_{i-j}}{\sqrt{E}}

    The positional term has N x N logits in any case, so the map is formed, in at least single
    precision. `in_proj_weight` holds q, k and v of one head, then those of the next.

    Source: https://arxiv.org/abs/1901.02860
    """

    host_class = RelPosMHAXL
    no_kernel = "its logits depend on relative positions"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pos_embs: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        return_attn_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Attend as speechbrain does, with the filter between the map and the values."""
        check_self_attention(query, key, value)
        bias, ignored = _split_masks(attn_mask, key_padding_mask, self.num_heads)
        qkv = F.linear(query, self.in_proj_weight)
        # (B, N, heads, d)
        q, k, v = qkv.view(*query.shape[:2], self.num_heads, 3 * self.head_dim).chunk(3, -1)
        if self.vbias is not None:
            v = v + self.value_bias_weight.view(self.num_heads, -1)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        # the host reads its (d, heads) parameters as (heads, d)
        u, w = (b.view(self.num_heads, -1) for b in (self.pos_bias_u, self.pos_bias_v))
        p = self.linear_pos(pos_embs).view(1, -1, self.num_heads, self.head_dim).transpose(1, 2)
        logits = ((q + u).transpose(1, 2) * self.scale) @ k.mT
        logits = logits + self.rel_shift(((q + w).transpose(1, 2) * self.scale) @ p.mT)
        if bias is not None:
            logits = logits + bias
        rate = find_H_dropout(self, self.dropout_att.p)
        drop = nn.Identity() if rate else self.dropout_att
        if ignored is not None:
            logits = logits.masked_fill(ignored, self.attn_fill_value)
        A: Any = logits.softmax(-1, torch.promote_types(logits.dtype, torch.float32))
        # a row without any key is NaN up to here
        A = drop(A if ignored is None else A.masked_fill(ignored, 0.0)).to(v.dtype)
        uniform = Softmax(k, k, None if ignored is None else ~ignored)
        A = Host(A.__matmul__, like=v, average=uniform.average, dropout=rate)
        y = self.out_proj(self.filter(A, v).transpose(1, 2).flatten(2))
        maps = form_filtered_map(self.filter, A) if return_attn_weights else None
        return y if return_attn_weights is False else (y, maps)


def _split_masks(
    attn_mask: Tensor | None, padding: Tensor | None, num_heads: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the logits' bias and the boolean mask of ignored pairs, broadcast to (B, H, N, N)."""
    bias = ignored = None
    if attn_mask is not None:
        heads = num_heads if attn_mask.ndim == 3 else 1
        pairs = attn_mask.reshape(-1, heads, *attn_mask.shape[-2:])
        is_bias = pairs.is_floating_point()
        bias, ignored = (pairs, ~allowed_pairs(pairs)) if is_bias else (None, pairs.bool())
    if padding is not None:
        padding = padding.bool()[:, None, None, :]
        ignored = padding if ignored is None else ignored | padding
    return bias, ignored


def is_decoder_attention(name: str, module: nn.Module) -> bool:
    """Return True for a decoder's attention: it stays plain as published, self-attention too."""
    parts = name.split(".")
    return "decoder" in parts or parts[-1] in ("self_attn", "multihead_attn")


ADAPTERS = {made.host_class: made for made in (FilteredSpeechAttention, FilteredRelPosMHAXL)}
_HOME = "speechbrain.nnet.attention"
HOST = HostLibrary(
    hook_points={
        "attention": {
            f"{_HOME}.MultiheadAttention": HookPoint("att.embed_dim", "att.out_proj", False, ""),
            f"{_HOME}.RelPosMHAXL": HookPoint("embed_dim", "out_proj", attention=""),
        }
    },
    find_adapter=ADAPTERS.get,
    is_cross_attention=is_decoder_attention,
    pads_tokens=True,
    plain_reason="the published code leaves decoders of speechbrain as they are",
)
