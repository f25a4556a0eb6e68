"""Adapters for timm, https://github.com/huggingface/pytorch-image-models

Each adapter follows its host step by step, and equals it bit for bit with a Plain filter. Dropout
acts on the map, as in timm; the fused adapter draws a new mask for each application. After
`filters.dropout_on_H` it acts on H, as in the released GFSA code.
"""

from functools import partial
from typing import Any

import torch.nn.functional as F
from timm.models.cait import TalkingHeadAttn
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from attention_core.hosts.adapter import Filtered, find_H_dropout, form_filtered_map
from attention_core.hosts.hook_points import HookPoint, HostLibrary
from attention_core.kernels.common import apply_kernel, postprocess
from attention_core.operators import Host, Softmax, masked_mean

try:
    from timm.layers.attention import Attention
except ModuleNotFoundError:  # before timm 1.0.20
    from timm.models.vision_transformer import Attention

PACKED = (("qkv.weight", "proj"),)


class FilteredAttention(Filtered, Attention):
    """The attention of ViT and DeiT with a filter and, if it has one, a kernel."""

    host_class, projections = Attention, PACKED
    slots = ("filter", "kernel")

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend as timm does, with the filter between the map and the values."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = self.q_norm(q), self.k_norm(k)  # (B, H, N, d)
        dropout = self.attn_drop.p if self.training else 0.0
        if self.kernel is None:
            A: Any = Softmax(q, k, attn_mask, is_causal, dropout)
        else:
            A = apply_kernel(self.kernel, (q, k), x, attn_mask, is_causal)
        y = postprocess(self.kernel, self.filter(A, v)).transpose(1, 2).flatten(2)
        # a fused call leaves out this module, whose hooks see H, as of rollouts
        if self.attn_drop._forward_hooks or self.attn_drop._forward_pre_hooks:
            self.attn_drop(form_filtered_map(self.filter, A))
        # older versions of timm have no norm here, and no gate
        if (norm := getattr(self, "norm", None)) is not None:
            y = norm(y)
        if (gate := getattr(self, "gate", None)) is not None:
            y = y * gate(x).sigmoid()
        return self.proj_drop(self.proj(y))


class FilteredTalkingHeads(Filtered, TalkingHeadAttn):
    """CaiT's attention with a filter of its dense map, whose heads are mixed after the softmax."""

    host_class, projections = TalkingHeadAttn, PACKED
    no_kernel = "it mixes the heads of its logits and of its map"

    def forward(self, x: Tensor) -> Tensor:
        """Attend as timm does, with the filter between the mixed map and the values."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        A: Any = _mix_heads(self.proj_w, _mix_heads(self.proj_l, q * self.scale @ k.mT).softmax(-1))
        rate = find_H_dropout(self, self.attn_drop.p)
        A = Host(A.__matmul__, like=v, dropout=rate) if rate else self.attn_drop(A)
        return self.proj_drop(self.proj(self.filter(A, v).transpose(1, 2).flatten(2)))


class FilteredWindows(Filtered, WindowAttention):
    """Swin's attention with a filter inside each window, (B windows, N, D).

    The mask of shifted windows is soft, -100: A^2 leaves a region with a weight of e^-100.
    """

    host_class, projections = WindowAttention, PACKED
    no_kernel = "the mask of its shifted windows depends on the query"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend as timm does, with the filter between the map of each window and the values."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        average = None  # q, k and v are (B windows, H, N, d)
        if mask is not None:
            allowed = (mask == 0).repeat(q.shape[0] // len(mask), 1, 1).unsqueeze(1)
            average = partial(masked_mean, valid=allowed)
        bias, rate = self._get_rel_pos_bias(), find_H_dropout(self, self.attn_drop.p)
        if self.fused_attn:
            bias = _add_window_mask(bias.expand(q.shape[0], -1, -1, -1), mask)
            p = self.attn_drop.p if self.training and not rate else 0.0
            attn = F.scaled_dot_product_attention
            A = Host(lambda u: attn(q, k, u, bias, p), v, average, rate)
        else:
            drop = nn.Identity() if rate else self.attn_drop
            logits = _add_window_mask(q * self.scale @ k.mT + bias, mask)
            A = Host(drop(self.softmax(logits)).__matmul__, v, average, rate)
        return self.proj_drop(self.proj(self.filter(A, v).transpose(1, 2).flatten(2)))


def _mix_heads(projection: nn.Module, maps: Tensor) -> Tensor:
    return projection(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _add_window_mask(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    return (logits.view(-1, len(mask), *logits.shape[1:]) + mask.unsqueeze(1)).flatten(0, 1)


_PROJ = HookPoint("proj.out_features")
# FeatScale of Swin averages the map of a stage, whose windows are merged and shifted back
_STAGE = HookPoint("dim", "drop_path1", before=True)
ADAPTERS = {m.host_class: m for m in (FilteredAttention, FilteredTalkingHeads, FilteredWindows)}
HOST = HostLibrary(
    hook_points={
        "attention": {
            f"{Attention.__module__}.Attention": HookPoint("proj.out_features", attention=""),
            "timm.models.cait.TalkingHeadAttn": _PROJ,
            "timm.models.swin_transformer.SwinTransformerBlock": _STAGE,
        },
        "window": {"timm.models.swin_transformer.WindowAttention": _PROJ},
        "mlp": {"timm.layers.mlp.Mlp": HookPoint("fc2.out_features")},
        "norms": {"timm.layers.norm.LayerNorm": HookPoint("normalized_shape", before=True)},
    },
    find_adapter=ADAPTERS.get,
)
