"""The adapter of `torch.nn.MultiheadAttention`, and so of the models that are built of it.

`torch.nn.TransformerEncoder`, torchvision's ViT, torchaudio's Conformer, PyG's GPSConv and
open_clip's towers use it. Dropout acts on the map, as in torch. A row without any key is zero,
where torch gives NaN.
"""

from functools import reduce
from operator import add, or_
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered, check_self_attention, form_filtered_map
from attention_core.hosts.generic import make_generic_adapter
from attention_core.hosts.hook_points import HookPoint, HostLibrary, has_cross_attention_name
from attention_core.kernels.common import apply_kernel, postprocess
from attention_core.operators import Softmax, allowed_pairs


class FilteredMultiheadAttention(Filtered, nn.MultiheadAttention):
    """torch's attention with a filter, by fused calls in O(N) memory.

    With `need_weights` it also returns H. The kernels that torch uses in evaluation for whole
    layers and nested tensors are bypassed. Masks are True where a key is ignored, or added.
    """

    host_class = nn.MultiheadAttention
    slots = ("filter", "kernel")
    projections = (("in_proj_weight", "out_proj"),)

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads; refuse a module with a key of its own."""
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "a MultiheadAttention with add_bias_kv or add_zero_attn has a key of its own, so "
                "that its map is not square and has no powers: leave it out by layers= or where=, "
                "or make it without"
            )
        return module.num_heads

    @classmethod
    def find_dim(cls, module: Any) -> int:
        """Return the number of channels of all heads."""
        return module.embed_dim

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # TransformerEncoderLayer calls one kernel for the whole layer where this is True
        return False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as torch does, with the filter between the map and the values."""
        if query.is_nested:
            raise ValueError(
                "a filter takes no nested tensor: attach to the whole nn.TransformerEncoder, or "
                "make it with enable_nested_tensor=False"
            )
        if not isinstance(self.filter, Plain) or hasattr(self.out_proj, "tokens"):
            check_self_attention(query, key)  # DETR adds positions to these two alone
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint on attn_mask, as in torch: give the mask too")
        q, k, v = self._project_inputs(query, key, value)
        dropout = self.dropout if self.training else 0.0
        mask = _merge_masks(attn_mask, key_padding_mask, q)
        if self.kernel is not None:
            A: Any = apply_kernel(self.kernel, (q, k), self._batch(query), mask, is_causal)
        elif is_causal and key_padding_mask is None and not need_weights:
            A = Softmax(q, k, None, True, dropout)
        else:
            A = Softmax(q, k, mask, False, dropout)
        y = self.out_proj(postprocess(self.kernel, self.filter(A, v)).transpose(1, 2).flatten(2))
        maps = form_filtered_map(self.filter, A) if need_weights else None
        if maps is not None and average_attn_weights:
            maps = maps.mean(1)
        if query.ndim == 2:
            return y.squeeze(0), None if maps is None else maps.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), maps

    def _project_inputs(self, *inputs: Tensor) -> list[Tensor]:
        """Return q, k and v as (B, H, N, d)."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if all(x is inputs[0] for x in inputs):
            projected = F.linear(inputs[0], weight, bias).chunk(3, -1)
        else:
            biases = [None] * 3 if bias is None else bias.chunk(3)
            projected = tuple(map(F.linear, inputs, weight.chunk(3), biases))
        batches = [self._batch(x) for x in projected]
        heads = (self.num_heads, self.head_dim)
        return [x.reshape(*x.shape[:2], *heads).transpose(1, 2) for x in batches]

    def _batch(self, x: Tensor) -> Tensor:
        """Return tokens as (B, N, E)."""
        return x.unsqueeze(0) if x.ndim == 2 else x if self.batch_first else x.transpose(0, 1)


def _merge_masks(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Return one mask that broadcasts to (B, H, N, N): True where allowed, or added."""
    masks = []
    if attn_mask is not None:
        heads = q.shape[1] if attn_mask.ndim == 3 else 1
        masks.append(attn_mask.reshape(-1, heads, *attn_mask.shape[-2:]))
    if padding is not None:
        masks.append(padding.reshape(-1, 1, 1, padding.shape[-1]))
    if all(mask.dtype == torch.bool for mask in masks):
        return ~reduce(or_, masks) if masks else None
    # the logarithm of an allowed pair is 0, that of another one -inf; integers are refused
    biases = [(~m).to(q.dtype).log() if allowed_pairs(m) is m else m for m in masks]
    return reduce(add, biases)


def has_cross_keys(name: str, module: nn.Module) -> bool:
    """Return True for keys of another width (kdim, vdim), and by a module's name."""
    is_wide = isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is None
    return is_wide or name.endswith("multihead_attn") or has_cross_attention_name(name, module)


def switch_nested_tensors(model: nn.Module) -> None:
    """Keep encoders with a filtered layer from making nested tensors; restore the others."""
    for encoder in model.modules():
        if not isinstance(encoder, nn.TransformerEncoder):
            continue
        state: Any = vars(encoder)
        if any(isinstance(part, Filtered) for part in encoder.modules()):
            state.setdefault("previous_nested_tensor", encoder.use_nested_tensor)
            encoder.use_nested_tensor = False
        elif "previous_nested_tensor" in state:
            encoder.use_nested_tensor = state.pop("previous_nested_tensor")


def find_adapter(host_class: Any) -> type[Filtered] | None:
    """Return the adapter of torch's attention, and of a subclass that has torch's forward."""
    if getattr(host_class, "forward", None) is not nn.MultiheadAttention.forward:
        return None
    base = FilteredMultiheadAttention
    return base if host_class is base.host_class else make_generic_adapter(host_class, base)


_OUT, _NORM = HookPoint("embed_dim", "out_proj", False, ""), HookPoint("normalized_shape", "", True)
HOST = HostLibrary(
    hook_points={
        "attention": {"torch.nn.modules.activation.MultiheadAttention": _OUT},
        "norms": {"torch.nn.modules.normalization.LayerNorm": _NORM},
    },
    find_adapter=find_adapter,
    is_cross_attention=has_cross_keys,
    update_config=switch_nested_tensors,
)
