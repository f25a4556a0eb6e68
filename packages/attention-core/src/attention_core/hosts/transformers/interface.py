"""The attention function that transformers calls for filtered modules, and its registration."""

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered, form_filtered_map
from attention_core.hosts.hook_points import find_host_class
from attention_core.hosts.transformers.cache import CachedOperator, CachedRows
from attention_core.kernels.common import apply_kernel, postprocess
from attention_core.operators import FormedSoftmax, Host, Softmax

try:
    from transformers.utils.output_capturing import _active_collector
except ModuleNotFoundError:  # before transformers 5, which passes output_attentions
    _active_collector = None

FILTERED, FILTERED_EAGER = "filtered", "filtered_eager"
# arguments of some models that change the map in a way that no filter supports
UNSUPPORTED_ARGS = ("sinks", "indices", "block_indices", "cache")
CALL = threading.local()  # the tokens of the module that runs, for its kernel


def register_filtered_attention() -> None:
    """Register our attention function in transformers, and its masks under the same name.

    transformers passes no mask to a function that has no masks under its name, without a warning.
    Under FILTERED_EAGER it always passes one: an eager model need not say whether it is causal.
    """
    AttentionInterface.register(FILTERED, filtered_attention_forward)
    AttentionMaskInterface.register(FILTERED, sdpa_mask)
    AttentionInterface.register(FILTERED_EAGER, _filtered_eager_forward)
    # additive: other attention of the model, which no filter changes, adds it to its logits
    AttentionMaskInterface.register(FILTERED_EAGER, eager_mask)


def filtered_implementation(implementation: str) -> str:
    """Return the name of our function that takes the same masks as one of transformers."""
    return FILTERED_EAGER if implementation in ("eager", FILTERED_EAGER) else FILTERED


def filtered_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    rows: CachedRows | None = None,
    allowed: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' SDPA function does, with the module's filter in between.

    With a Plain filter it is transformers' function. `allowed` are the pairs that an average
    counts, where the mask only lowers the logits of others. Capped logits (`softcap`) and sinks
    (`s_aux`) need the whole map. The second result is H if attentions are requested.

    Shapes: query (B, H, n, D), key and value (B, H / groups, M, D), mask (B, 1, n, M) boolean or
    additive, position_bias (1, H, n, M), s_aux (H,) -> (B, n, H, D) and (B, H, n, M).
    """
    if given := [name for name in UNSUPPORTED_ARGS if kwargs.get(name) is not None]:
        name = find_host_class(module).__name__
        raise ValueError(f"{name} passes {given[0]}, which no filter supports")
    filter = module.filter if isinstance(module, Filtered) else Plain()
    kernel: Any = getattr(module, "kernel", None)
    is_plain, wants_map = isinstance(filter, Plain) and kernel is None, _wants_map(kwargs)
    is_formed = softcap is not None or s_aux is not None
    if is_plain and not is_formed:
        rest = {"dropout": dropout, "scaling": scaling, "position_bias": position_bias} | kwargs
        rest |= {"is_causal": is_causal, "output_attentions": False}

        def attend(v: Tensor) -> Tensor:
            y, _ = sdpa_attention_forward(module, query, key, v, attention_mask, **rest)
            return y.transpose(1, 2)

        # a call of the filter, so that hooks of the filter see it
        y = filter(Host(attend, like=value), value).transpose(1, 2)
        if not wants_map:
            return y, None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if key.shape[1] != query.shape[1]:  # groups of heads share keys and values
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    mask, causal = _merge_masks(query, key, attention_mask, position_bias, causal)
    A: Any = Softmax(query, key, mask, causal, dropout, scaling, allowed)
    if kernel is not None:
        A = apply_kernel(kernel, (query, key), CALL.tokens, mask, causal)
    elif is_formed:
        A = FormedSoftmax(query, key, mask, causal, dropout, scaling, softcap=softcap, sinks=s_aux)
    if not is_plain or is_formed:
        operator: Any = A
        if rows is not None and not is_plain:
            operator = CachedOperator(A, value, query.shape[-2], rows)
        z = postprocess(kernel, filter(operator, getattr(operator, "new", value)))
        y = z.transpose(1, 2).contiguous()
    return y, _form_map(filter, A) if wants_map else None


def _filtered_eager_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    return filtered_attention_forward(*args, **kwargs | {"is_causal": False})


def _merge_masks(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> tuple[Tensor | None, bool]:
    """Return the mask plus the bias, and True if the map is causal without a mask."""
    if mask is None:
        # as in transformers: a single query is the last one, and sees all keys
        causal = causal and q.shape[-2] > 1
        if not causal or q.shape[-2] == k.shape[-2]:
            return bias, causal
        # a static cache is longer than the first tokens, which are its first keys
        mask = torch.ones(1, 1, q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    is_boolean = mask.dtype == torch.bool
    if mask.ndim != 4 or not (mask.is_floating_point() or is_boolean):
        raise ValueError(
            f"a mask must be boolean or additive, of shape (batch, heads, queries, keys), got "
            f"{tuple(mask.shape)} of {mask.dtype}"
        )
    if mask.stride(-2) == 0:
        mask = mask[..., :1, :]  # all queries see the same keys, so their average is one row
    if bias is not None:
        mask = bias.masked_fill(~mask, -torch.inf) if is_boolean else bias + mask
    return mask, False


def _wants_map(kwargs: dict[str, Any]) -> bool:
    if _active_collector is None:
        return bool(kwargs.get("output_attentions"))
    # a compiler cannot read a context variable: transformers keeps a global one for it
    is_compiling = torch.compiler.is_compiling()
    names = (_active_collector.global_var if is_compiling else _active_collector.get()) or {}
    return bool(kwargs.get("output_attentions")) or any(k.endswith("attentions") for k in names)


def _form_map(filter: nn.Module, A: Any) -> Tensor:
    if isinstance(A, Softmax) and A.q.shape[-2] != A.k.shape[-2] and not isinstance(filter, Plain):
        raise ValueError("a cached step forms no H: ask for attentions with use_cache=False")
    return form_filtered_map(filter, A)
