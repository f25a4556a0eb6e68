"""The adapter of an attention class, made from transformers' own."""

import inspect
import warnings
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, is_grad_enabled, nn

from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import CROSS_ATTENTION, Filtered, find_num_heads
from attention_core.hosts.generic import FilteredForward, has_square_map, make_generic_adapter
from attention_core.hosts.hook_points import (
    find_host_class,
    find_import_path,
    has_cross_attention_name,
)
from attention_core.hosts.known_classes import TRANSFORMERS_CLASSES, KnownClass
from attention_core.hosts.transformers.cache import CachedOperator, CachedRows
from attention_core.hosts.transformers.interface import (
    CALL,
    FILTERED,
    FILTERED_EAGER,
    filtered_implementation,
    register_filtered_attention,
)

MODELS = "transformers.models."
WAVLM = "transformers.models.wavlm.modeling_wavlm.WavLMAttention"
CACHE_ARGS = ("past_key_values", "layer_past", "cache")  # the last since transformers 5.24
CROSS_ATTENTION_ARGS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# the last is BERT's: beside the attention, in the module around it
PROJECTIONS = (
    *(("v_proj.weight", "o_proj"), ("v_proj.weight", "out_proj"), ("v.weight", "o")),
    *(("v_lin.weight", "out_lin"), ("value.weight", "dense"), ("value.weight", "output.dense")),
)
WINDOW_MASK_NDIM = 3  # (windows, N, N): 0 inside a region of a shifted window, and -100 outside


class FilteredInterface(Filtered):
    """An attention of transformers whose config names our attention function."""

    slots = ("filter", "kernel")
    projections = PROJECTIONS
    forward_args: ClassVar[tuple[str, ...]]
    config: Any
    previous_implementation: str | None

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads that a module, its config or its queries tell."""
        if num_heads := find_num_heads(module):
            return num_heads
        if isinstance(getattr(module, "q_proj", None), nn.Linear) and hasattr(module, "head_dim"):
            return module.q_proj.out_features // module.head_dim
        raise ValueError(f"{find_import_path(module)} stores no number of heads")

    @classmethod
    def find_dim(cls, module: Any) -> int:
        """Return the number of channels of all heads."""
        return module.config.hidden_size

    @classmethod
    def refuse_kernel(cls, module: Any) -> str | None:
        """Refuse causal attention, windows, and a bias that depends on the query (T5, Swin)."""
        if getattr(module, "is_causal", True):
            return "it is causal, and kernels are bidirectional"
        if any("relative" in name and "bias" in name for name in dir(module)):
            return "its bias depends on the query"
        is_local = getattr(module, "sliding_window", None) is not None
        return "its window depends on the query" if is_local else None

    def on_attach(self) -> None:
        """Name our attention function in the config, and remember the previous one."""
        previous = self.config._attn_implementation
        kept = getattr(self, "previous_implementation", previous)
        self.previous_implementation = kept if previous in (FILTERED, FILTERED_EAGER) else previous
        if previous not in (None, "eager", "sdpa", FILTERED, FILTERED_EAGER):
            warnings.warn(
                f"a filter does not run in {previous!r}: its layers call torch's "
                "scaled_dot_product_attention instead",
                stacklevel=3,  # the caller of `attach`
            )
        # not by its setter, which would change the configs of other parts of the model
        self.config._attn_implementation_internal = filtered_implementation(previous)

    def on_detach(self) -> None:
        """Name the previous attention function in the config again."""
        if self.previous_implementation not in (FILTERED, FILTERED_EAGER):
            self.config._attn_implementation_internal = self.previous_implementation
        del self.previous_implementation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Attend as transformers does, and pass the cache to the attention function too."""
        if (name := self.config._attn_implementation) in ("eager", "sdpa"):
            self.on_attach()  # another layer or model of this config was detached
        elif name not in (FILTERED, FILTERED_EAGER):
            raise ValueError(
                f"the attention function is {name!r}, which ignores the filter: call "
                f"set_attn_implementation({filtered_implementation(name)!r}) or detach"
            )
        named = dict(zip(self.forward_args, args, strict=False)) | kwargs
        if not isinstance(self.filter, Plain):
            states = (named.get(arg) for arg in CROSS_ATTENTION_ARGS if arg in self.forward_args)
            if any(isinstance(state, Tensor) for state in states):
                raise ValueError(f"{self.host_class.__name__} is {CROSS_ATTENTION}")
            if (rows := find_rows(self, named)) is not None:
                kwargs["rows"] = rows
            mask = named.get("attention_mask")
            if isinstance(mask, Tensor) and mask.ndim == WINDOW_MASK_NDIM:
                # the pairs of tokens in one region of a shifted window, (B windows, 1, N, N)
                repeats = len(named["hidden_states"]) // len(mask)
                kwargs["allowed"] = (mask == 0).repeat(repeats, 1, 1).unsqueeze(1)
        if self.kernel is None:
            return self.host_class.forward(self, *args, **kwargs)
        CALL.tokens = named["hidden_states"]  # SigLIP and VideoMAE hand no other arguments on
        try:
            return self.host_class.forward(self, *args, **kwargs)
        finally:
            CALL.tokens = None


class FilteredForming(FilteredForward):
    """An attention of transformers that forms its map itself, and may continue from a cache."""

    rows: CachedRows | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's forward with its map filtered."""
        rows = find_rows(self, dict(zip(self.forward_args, args, strict=False)) | kwargs)
        return self.run_filtered(rows and partial(CachedOperator, rows=rows), args, kwargs)


def find_rows(module: Any, named: dict[str, Any]) -> CachedRows | None:
    """Return the rows of a module's filter in the cache of its call; none if it trains."""
    past = next((named[arg] for arg in CACHE_ARGS if named.get(arg) is not None), None)
    if past is None or isinstance(module.filter, Plain):
        return None
    rows = CachedRows(past, module, named.get("layer_idx"))
    trains = module.training and is_grad_enabled()
    if trains and rows.count_past():
        raise ValueError(
            "a filter cannot continue from a cache in training: call eval() first, and use no "
            "prefix tuning, which fills the cache"
        )
    return None if trains else rows


@cache
def make_adapter(host_class: Any) -> type[Filtered] | None:
    """Return the adapter of a class whose forward looks its function up in AttentionInterface."""
    if f"{host_class.__module__}.{host_class.__name__}" == WAVLM:
        return import_module("attention_core.hosts.transformers.wavlm").FilteredWavLMAttention
    forward = inspect.unwrap(host_class.forward)
    code = getattr(forward, "__code__", None)
    if TRANSFORMERS_CLASSES.get(f"{host_class.__module__}.{host_class.__name__}") == KnownClass():
        return make_generic_adapter(host_class, FilteredForming)
    if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names:
        return None
    forward_args = tuple(inspect.signature(forward).parameters)[1:]
    if "hidden_states" not in forward_args or not host_class.__module__.startswith(MODELS):
        return None
    register_filtered_attention()
    body = {"host_class": host_class, "forward_args": forward_args, "__module__": __name__}
    body["made_by"] = (make_adapter, host_class)
    return type(f"Filtered{host_class.__name__}", (FilteredInterface, host_class), body)


def is_cross_attention(name: str, module: nn.Module) -> bool:
    """Recognize attention to others' keys by class (BERT), flag (GPT-2, Gemma 4) or name (BART)."""
    return (
        has_square_map(module) is False
        or "visual_attention" in name.split(".")[-2:]
        or any(word in find_host_class(module).__name__ for word in ("Cross", "Merged"))
        or bool(getattr(module, "is_cross_attention", False))
        or bool(getattr(module, "is_kv_shared_layer", False))
        or has_cross_attention_name(name, module)
    )
