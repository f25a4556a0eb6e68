"""Generation with a cache: filters of a map of which only the new rows are computed.

The map of a step is (n, M): n new queries, M keys. `A (A v)` needs `A v` of all M tokens, so the
cache keeps the rows of the past tokens beside their values.
"""

import copy
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from attention_core.hosts.adapter import make_empty
from attention_core.operators import apply_operator, average

# what changes a layer of a cache beside `update`
_CHANGES = (
    *("reset", "reorder_cache", "crop", "batch_repeat_interleave", "batch_select_indices"),
    *("offload", "prefetch", "activate_past_recording"),
)


@cache
def make_filter_layer(layer_class: Any) -> Any:
    """Return a class of cache layers that keeps a filter's rows, and changes them as its keys.

    `rows[i]` is a layer of `layer_class` that holds the input of application i + 2 of a pass.
    """

    def change_rows(change: Callable[..., None]) -> Callable[..., None]:
        @wraps(change)
        def change_all(layer: Any, *args: Any, **kwargs: Any) -> None:
            for each in (layer, *layer.rows):
                change(each, *args, **kwargs)

        return change_all

    names = [name for name in _CHANGES if hasattr(layer_class, name)]
    body: dict[str, Any] = {name: change_rows(getattr(layer_class, name)) for name in names}
    # transformers registers a class that names its type
    body |= {"host_class": layer_class, "_layer_type": None}
    body["__reduce__"] = lambda layer: (make_empty, (make_filter_layer, layer_class), vars(layer))
    return type(f"Filter{layer_class.__name__}", (layer_class,), body)


def make_row_layer(layer: Any) -> Any:
    """Return an empty layer of a cache with the settings of a layer that keeps rows."""
    row = copy.copy(layer)
    row.__class__ = layer.host_class
    row.keys, row.values, row.is_initialized = None, None, False
    row.number_of_states = 0  # the states of linear attention are shared: the layer reorders them
    for name in ("cumulative_length", "cumulative_length_int"):
        if isinstance(count := getattr(row, name, None), Tensor):
            setattr(row, name, torch.zeros_like(count))
        elif count is not None:
            setattr(row, name, 0)
    return row


class CachedRows:
    """The rows that a filter keeps in the layer of its module, counted over all calls in a pass."""

    def __init__(self, past: Cache, module: Any, index: int | None = None) -> None:
        self.past: Any = getattr(past, "self_attention_cache", past)
        self.num_inputs = 0
        own = getattr(module, "layer_idx", getattr(module, "layer_id", None))
        self.index = own if index is None else index  # a shared module has one of each call

    def count_past(self) -> int:
        """Return the number of tokens that the cache holds for the module."""
        layers: Any = getattr(self.past, "layers", ())
        known = self.index is not None and self.index < len(layers)
        return int(layers[self.index].get_seq_length()) if known else 0

    def find_layer(self) -> Any:
        """Return the layer of the cache, converted to one that keeps rows."""
        layers = getattr(self.past, "layers", ())
        if self.index is None or self.index >= len(layers):
            raise ValueError("a filter needs a cache with a layer for each attention module")
        layer: Any = layers[self.index]
        is_old = hasattr(layer, "max_cache_len") and not hasattr(layer, "cumulative_length")
        if hasattr(layer, "_quantized_keys") or not hasattr(layer, "update") or is_old:
            raise ValueError(
                f"a filter needs the past tokens, which {type(layer).__name__} does not keep: "
                "change the cache or set use_cache=False"
            )
        if not hasattr(layer, "host_class"):
            layer.__class__, layer.rows = make_filter_layer(layer.__class__), []
        return layer

    def prepend_past(self, x: Tensor, num_keys: int) -> Tensor:
        """Store new rows (B, H, n, D), and return them after the past ones, (B, H, M, D)."""
        layer, i, n = self.find_layer(), self.num_inputs, x.shape[-2]
        self.num_inputs += 1
        if i == len(layer.rows):
            layer.rows.append(make_row_layer(layer))
        row = layer.rows[i]
        # a compiler cannot branch on the length of a static cache, a tensor
        is_known = not torch.compiler.is_compiling()
        if is_known and int(row.get_seq_length()) != int(layer.get_seq_length()) - n:
            raise ValueError("the cache was filled without this filter: start from an empty one")
        rows, _ = row.update(x, x[..., :0])
        if rows.shape[-2] != num_keys:
            raise ValueError("the cache and the keys differ in length: start from an empty cache")
        return rows

    def select_new(self, values: Tensor, n: int) -> Tensor:
        """Return the values of the n new tokens, which a static cache writes at their positions."""
        layer = self.find_layer()
        end: Any = getattr(layer, "cumulative_length", None)
        is_static = isinstance(end, Tensor) and values.shape[-2] > n
        # a window that is full moves, and ends with the new tokens
        if is_static and getattr(layer, "cumulative_length_int", 0) <= layer.max_cache_len:
            return values.index_select(-2, torch.arange(n, device=values.device) + end - n)
        return values[..., values.shape[-2] - n :, :]


class CachedOperator:
    r"""The new rows of a map, applied to new tokens and to the past ones from the cache.

    .. math:: (A x)_{\mathrm{new}} = A_{\mathrm{new}} \, [x_{\mathrm{past}}; x_{\mathrm{new}}]

    `new` holds the new values; the host's cache has the past ones. `rows` have the past of any
    other x, stored in the order in which the filter applies A.

    Shapes: A (B, H, n, M), values (B, H, M, D), new (B, H, n, D).
    """

    def __init__(self, A: Any, values: Tensor, n: int, rows: CachedRows) -> None:
        self.A, self.values, self.rows, self.dropout = A, values, rows, getattr(A, "dropout", 0)
        self.new = rows.select_new(values, n)

    def __matmul__(self, x: Tensor) -> Tensor:
        """Attend to all tokens so far."""
        return apply_operator(self.A, self._prepend_past(x))

    def average(self, x: Tensor) -> Tensor:
        """Average the keys that each new query may attend to."""
        return average(self.A, self._prepend_past(x))

    def dense(self) -> Tensor:
        """Raise ValueError: the cache does not keep the past rows of the map."""
        raise ValueError("a filter that forms the map cannot use a cache: set use_cache=False")

    def _prepend_past(self, x: Tensor) -> Tensor:
        return self.values if x is self.new else self.rows.prepend_past(x, self.values.shape[-2])
