"""The adapter of any module that calls `torch.nn.functional.scaled_dot_product_attention`.

The module's own forward runs as it is; its one call of the function is replaced by the filter of
the same map. Nothing is known of the module but this call, so it takes filters alone.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_core.adapter import NUM_HEADS_NAMES, Filtered
from attention_core.filters.plain import Plain
from attention_core.operators import Host, Softmax

HEAD_AXIS = -3  # of the queries of a class that is not in the table


def _is_square(module: Any) -> bool:
    return True


class SdpaCall(NamedTuple):
    """The call of a class: its axis of heads, and for which of its modules the map is square.

    Axis 0 of queries (B H, N, d) holds batch and heads.
    """

    head_axis: int = HEAD_AXIS
    is_square: Callable[[Any], bool] = _is_square


_ONE_MAP = SdpaCall()
_NO_REDUCTION = SdpaCall(is_square=lambda module: module.sr is None)
# classes that call the function once with a map of all their tokens, or of those of a window
SDPA_CLASSES = {
    "timm.layers.attention.AttentionRope": _ONE_MAP,
    "timm.layers.attention2d.MultiQueryAttention2d": SdpaCall(
        is_square=lambda module: module.kv_stride == 1 and not module.has_query_strides
    ),
    "timm.models.beit.Attention": _ONE_MAP,
    "timm.models.cpubone.ConvAttention": _ONE_MAP,
    "timm.models.davit.WindowAttention": _ONE_MAP,
    "timm.models.eva.EvaAttention": _ONE_MAP,
    "timm.models.fastvit.Attention": _ONE_MAP,
    "timm.models.gemma4_vit.Gemma4Attention": _ONE_MAP,
    "timm.models.hiera.MaskUnitAttention": SdpaCall(1, lambda module: module.q_stride == 1),
    "timm.models.hieradet_sam2.MultiScaleAttention": SdpaCall(
        is_square=lambda module: module.q_pool is None
    ),
    "timm.models.lowformer.ConvAttention": _ONE_MAP,
    "timm.models.maxxvit.Attention2d": _ONE_MAP,
    "timm.models.maxxvit.AttentionCl": _ONE_MAP,
    "timm.models.metaformer.Attention": _ONE_MAP,
    "timm.models.nest.Attention": SdpaCall(1),
    "timm.models.nextvit.EfficientAttention": _NO_REDUCTION,
    "timm.models.pvt_v2.Attention": _NO_REDUCTION,
    "timm.models.tiny_vit.Attention": _ONE_MAP,
    "timm.models.twins.GlobalSubSampleAttn": _NO_REDUCTION,
    "timm.models.twins.LocallyGroupedAttn": _ONE_MAP,
    "timm.models.vision_transformer.ParallelScalingBlock": _ONE_MAP,
    "timm.models.vision_transformer_relpos.RelPosAttention": _ONE_MAP,
    "timm.models.vision_transformer_sam.Attention": SdpaCall(0),
    "timm.models.visformer.Attention": _ONE_MAP,
    "timm.models.volo.Attention": _ONE_MAP,
}


class FilteredSdpa(Filtered):
    r"""An attention whose call of `scaled_dot_product_attention` is filtered.

    .. math:: y = H(A) v, \qquad A = \mathrm{softmax}(q k^\top \cdot \mathrm{scale} + b)

    With a Plain filter it equals its host bit for bit, with any other at identity up to rounding.
    timm's `fused_attn` is switched on, since without it the function is not called.

    Shapes: those of the host; the call is of q, k, v (B, H, N, D), or of k, v of groups of heads.

    Raises ValueError in the forward pass if the host does not call the function exactly once, if
    the map is not square (cross-attention, a cache), or if the axes are others.
    """

    takes_reparam = False
    head_axis: ClassVar[int]
    is_known: ClassVar[bool]
    previous_fused_attn: bool

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads that a module or its config stores under a common name."""
        for holder in (module, getattr(module, "config", None)):
            for name in NUM_HEADS_NAMES:
                if isinstance(num_heads := getattr(holder, name, None), int):
                    return num_heads
        raise ValueError(
            f"{type(module).__name__} stores no number of heads: set one of its attributes "
            f"{', '.join(NUM_HEADS_NAMES)} before attach"
        )

    def on_attach(self) -> None:
        """Switch timm's `fused_attn` on, and remember what it was."""
        if isinstance(fused := getattr(self, "fused_attn", None), bool):
            self.previous_fused_attn = getattr(self, "previous_fused_attn", fused)
            self.fused_attn = True

    def on_detach(self) -> None:
        """Set timm's `fused_attn` to what it was."""
        if hasattr(self, "previous_fused_attn"):
            self.fused_attn = self.previous_fused_attn
            del self.previous_fused_attn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's forward with its map filtered."""
        calls: list[Tensor] = []  # the queries of each call
        with _FilterMap(self, calls):
            y: Any = self.host_class.forward(self, *args, **kwargs)
        if len(calls) != 1:
            how = f"{len(calls)} times" if calls else "not at all"
            raise ValueError(
                f"{self.host_class.__name__} called scaled_dot_product_attention {how} in a "
                "forward pass, and its filter needs exactly one call"
            )
        return y

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the host's class: the adapter's class is made at run time."""
        return _make_empty, (self.host_class,), self.__dict__


class _FilterMap(TorchFunctionMode):
    """Replace the call of `scaled_dot_product_attention` by the filter of its map."""

    def __init__(self, module: Any, calls: list[Tensor]) -> None:
        super().__init__()
        self.module, self.calls, self.owner = module, calls, module.host_class.__name__

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls.append(args[0] if args else kwargs["query"])
        return self._filter_call(*args, **kwargs)

    def _filter_call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        self._check_axes(query)
        q, k, v = (self._move_heads(x) for x in (query, key, value))
        k, v = (_repeat_groups(q, x) for x in (k, v))
        mask = attn_mask
        if mask is not None and mask.ndim == query.ndim:
            mask = self._move_heads(mask)
        filter = self.module.filter
        if isinstance(filter, Plain):

            def attend(u: Tensor) -> Tensor:
                return F.scaled_dot_product_attention(
                    q, k, u, mask, dropout_p, is_causal, scale=scale
                )

            y = filter(Host(attend, like=v), v)  # a call, so that hooks of the filter see it
        elif q.shape[-2] == k.shape[-2]:
            y = filter(Softmax(q, k, mask, is_causal, dropout_p, scale), v)
        else:
            raise ValueError(
                f"{self.owner} has a map of {q.shape[-2]} queries and {k.shape[-2]} keys, which "
                "has no powers: leave it out by layers= or where=, and use no cache"
            )
        axis = self.module.head_axis
        return y.flatten(0, 1) if axis == 0 else y.movedim(-3, axis)

    def _check_axes(self, query: Tensor) -> None:
        if query.ndim != 4 and not self.module.is_known:
            raise ValueError(
                f"{self.owner} calls scaled_dot_product_attention with queries of {query.ndim} "
                "axes, and its filter needs (batch, heads, tokens, channels)"
            )

    def _move_heads(self, x: Tensor) -> Tensor:
        """Return queries, keys, values or a mask of the host as (..., H, N, D)."""
        axis = self.module.head_axis
        if axis == 0:
            return x.unflatten(0, (-1, self.module.count_heads(self.module)))  # type: ignore[no-untyped-call]
        return x.movedim(axis, -3)


def _repeat_groups(q: Tensor, x: Tensor) -> Tensor:
    """Repeat the keys or values (..., groups, M, D) of groups of heads once per head."""
    groups, heads = x.shape[-3], q.shape[-3]
    return x if groups == heads else x.repeat_interleave(heads // groups, -3)


@cache
def make_sdpa_adapter(host_class: Any) -> type[FilteredSdpa]:
    """Return the adapter of a class."""
    known = SDPA_CLASSES.get(_find_path(host_class))
    axis = HEAD_AXIS if known is None else known.head_axis
    body = {"host_class": host_class, "head_axis": axis, "is_known": known is not None}
    body["__module__"] = __name__
    return type(f"Filtered{host_class.__name__}", (FilteredSdpa, host_class), body)


def find_sdpa_adapter(module: nn.Module) -> type[FilteredSdpa] | None:
    """Return the adapter of a module that is known to have one square map, None for any other."""
    host_class: Any = type(module)
    known = SDPA_CLASSES.get(_find_path(host_class))
    return make_sdpa_adapter(host_class) if known and known.is_square(module) else None


def calls_sdpa(host_class: type[nn.Module]) -> bool:
    """Return True if the forward of a class names `scaled_dot_product_attention`."""
    code = getattr(inspect.unwrap(host_class.forward), "__code__", None)
    return code is not None and "scaled_dot_product_attention" in code.co_names


def _find_path(host_class: type[nn.Module]) -> str:
    return f"{host_class.__module__}.{host_class.__qualname__}"


def _make_empty(host_class: Any) -> Any:
    adapter = make_sdpa_adapter(host_class)
    return adapter.__new__(adapter)
