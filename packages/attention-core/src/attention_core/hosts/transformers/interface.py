"""The attention function that transformers calls for filtered modules, and its registration."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils.output_capturing import _active_collector

from attention_core import spectral
from attention_core.adapters import Filtered
from attention_core.filters.plain import Plain
from attention_core.hosts.transformers.decoding import Incremental, RowLayer, keeping
from attention_core.operators import Host, Softmax

NAME, EAGER = "filtered", "filtered_eager"
# what some models pass that changes the map in a way that no filter of ours knows
REFUSED = ("softcap", "s_aux", "sinks", "indices", "block_indices", "cache")


def register() -> None:
    """Tell transformers of the function and, by the same name, of the masks that it takes.

    A function without masks of its name is silently called without any. By the second name masks
    are never left out: a model that transformers runs eagerly need not say what is causal.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> register()
    >>> NAME in AttentionInterface().valid_keys()
    True
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(EAGER, _attend_by_mask)
    AttentionMaskInterface.register(EAGER, _whole_mask)


def ours(implementation: str) -> str:
    """The name of our function that takes masks as one of transformers' does.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> ours("sdpa"), ours("eager")
    ('filtered', 'filtered_eager')
    """
    return EAGER if implementation in ("eager", EAGER) else NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    past: Cache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    r"""Attend as transformers' own SDPA function does, with the module's filter in between.

    .. math:: y = H(A) v, \qquad A = \mathrm{softmax}(q k^\top \cdot \mathrm{scaling} + b)

    A module without a filter, or with a Plain one, is that function. A mask that is None allows
    everything, or the past alone where the module is causal. The second value is H where
    attentions are asked for.

    Shapes: query (B, H, n, D), key and value (B, H / groups, M, D), mask (B, 1, n, M) boolean or
    additive, position_bias (1, H, n, M) -> (B, n, H, D) and (B, H, n, M).

    Raises ValueError for what would change the map unseen (soft caps, sinks, sparse or paged
    attention), and for a map that is not square without a cache.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> x = torch.zeros(1, 1, 2, 4)
    >>> attend(nn.Identity(), x, x, x, None, is_causal=False)[0].shape
    torch.Size([1, 2, 1, 4])
    """
    if given := [name for name in REFUSED if kwargs.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} passes {given[0]}, which no filter knows")
    filter = module.filter if isinstance(module, Filtered) else Plain()
    plain, wanted = isinstance(filter, Plain), _wants_maps(kwargs)
    if plain:
        rest = {"dropout": dropout, "scaling": scaling, "position_bias": position_bias} | kwargs
        rest |= {"is_causal": is_causal, "output_attentions": False}

        def stock(v: Tensor) -> Tensor:
            y, _ = sdpa_attention_forward(module, query, key, v, attention_mask, **rest)
            return y.transpose(1, 2)

        y = filter(Host(stock, like=value), value).transpose(1, 2)  # seen by hooks of the filter
        if not wanted:
            return y, None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    layer = None if plain or past is None else _layer(past, module, query, key)
    key, value = _ungroup(query, key), _ungroup(query, value)
    mask, causal = _mask(query, key, attention_mask, position_bias, causal)
    A = Softmax(query, key, mask, causal, dropout, scaling)
    if not plain:
        y = _filter(filter, A, value, layer).transpose(1, 2).contiguous()
    return y, _maps(filter, A) if wanted else None


def _attend_by_mask(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    return attend(*args, **kwargs | {"is_causal": False})


def _whole_mask(**kwargs: Any) -> Tensor | None:
    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**kwargs | never)


def _layer(past: Cache, module: nn.Module, query: Tensor, key: Tensor) -> RowLayer | None:
    if not module.training:
        return keeping(past, module, key.shape[-2])
    if query.shape[-2] != key.shape[-2]:
        raise ValueError("a filter does not go on from a cache in training: call eval() first")
    return None  # a pass of training never goes on: nothing is kept


def _filter(filter: nn.Module, A: Softmax, value: Tensor, layer: RowLayer | None) -> Tensor:
    if layer is None:
        return filter(A, value)
    steps = Incremental(A, value, layer)
    return filter(steps, steps.new)


def _mask(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> tuple[Tensor | None, bool]:
    """The mask with the bias in it, and whether the map is causal without one."""
    if mask is None:
        # as transformers: a single query is the last, and sees all keys
        causal = causal and q.shape[-2] > 1
        if causal and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"a causal filter without a mask needs as many keys as queries, got "
                f"{k.shape[-2]} and {q.shape[-2]}"
            )
        return bias, causal
    if mask.ndim != 4 or not (mask.is_floating_point() or mask.dtype == torch.bool):
        raise ValueError(
            f"a mask is boolean or additive, of (batch, heads, queries, keys), got "
            f"{tuple(mask.shape)} of {mask.dtype}"
        )
    if mask.stride(-2) == 0:
        mask = mask[..., :1, :]  # the same keys for all queries: their average is one
    if bias is not None:
        boolean = mask.dtype == torch.bool
        mask = bias.masked_fill(~mask, -torch.inf) if boolean else bias + mask
    return mask, False


def _ungroup(q: Tensor, x: Tensor) -> Tensor:
    """Keys or values of groups of heads, once for each head."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _wants_maps(kwargs: dict[str, Any]) -> bool:
    # a compiler cannot read a context variable: transformers keeps a global one for it
    compiling = torch.compiler.is_compiling()
    wanted = (_active_collector.global_var if compiling else _active_collector.get()) or {}
    return bool(kwargs.get("output_attentions")) or any(k.endswith("attentions") for k in wanted)


def _maps(filter: nn.Module, A: Softmax) -> Tensor:
    if A.q.shape[-2] != A.k.shape[-2] and not isinstance(filter, Plain):
        raise ValueError(
            "H of a cached step is not formed: ask for attentions with use_cache=False"
        )
    A.dropout = 0.0  # to look at, not what has been applied
    return spectral.matrix(filter, A)
