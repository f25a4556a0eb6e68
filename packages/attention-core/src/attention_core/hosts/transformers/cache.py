"""Generation with a cache: filters of a map of which only the new rows are computed.

The map of a step is (n, M): n new queries, M keys. `A (A v)` needs `A v` of all M tokens, so the
cache keeps the rows of the past tokens beside their values.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from attention_core.operators import Softmax, apply_operator, average


class FilterCacheLayer(DynamicLayer):
    """A layer of a cache that also keeps the inputs of a filter's second and later applications.

    `rows[i]` is the input of application i + 2, (B, H, M, D), for all tokens that are kept.
    """

    rows: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = []

    def count_kept(self, length: int) -> int:
        """Return how many of `length` tokens are kept for the next step: all of them."""
        return length

    def store_rows(self, i: int, rows: Tensor) -> None:
        """Keep the rows of an application for the next step."""
        kept = self.count_kept(rows.shape[-2])
        self.rows[i : i + 1] = [rows[..., rows.shape[-2] - kept :, :]]

    def _update_rows(self, change: Any) -> None:
        self.rows = [change(row) for row in self.rows]

    def offload(self) -> None:
        """Move the layer to the CPU."""
        super().offload()
        self._update_rows(lambda row: row.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the layer back to its device."""
        super().prefetch()
        if self.is_initialized:
            self._update_rows(lambda row: row.to(self.device, non_blocking=True))

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.rows = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the samples by beam."""
        super().reorder_cache(beam_idx)
        self._update_rows(lambda row: row.index_select(0, beam_idx.to(row.device)))

    def crop(self, length: int) -> None:
        """Remove the last tokens: -length of them or, before transformers 5, all after `length`."""
        super().crop(length)
        if self.keys is not None:
            kept = self.keys.shape[-2]
            self._update_rows(lambda row: row[..., :kept, :])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sample."""
        super().batch_repeat_interleave(repeats)
        self._update_rows(lambda row: row.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the samples."""
        super().batch_select_indices(indices)
        self._update_rows(lambda row: row[indices, ...])


class FilterSlidingLayer(FilterCacheLayer, DynamicSlidingWindowLayer):
    """A layer of a cache that keeps the rows of a sliding window, as it keeps its keys."""

    def count_kept(self, length: int) -> int:
        """Return how many of `length` tokens the next step may see: the window without itself."""
        records = getattr(self, "record_past", False)  # since transformers 5
        return length if records else min(length, self.sliding_window - 1)

    def crop(self, length: int) -> None:
        """Remove the last tokens, and those that no later step sees."""
        before = self.cumulative_length
        DynamicSlidingWindowLayer.crop(self, length)
        removed = before - self.cumulative_length
        if self.keys is not None:
            kept = self.keys.shape[-2]
            self._update_rows(lambda row: row[..., : row.shape[-2] - removed, :])
            self._update_rows(lambda row: row[..., row.shape[-2] - kept :, :])


# the layers of a cache that can keep rows too
_FILTER_LAYERS: dict[type, type[FilterCacheLayer]] = {
    DynamicLayer: FilterCacheLayer,
    DynamicSlidingWindowLayer: FilterSlidingLayer,
}


class CachedOperator:
    r"""The new rows of a map, applied to new tokens and to the past ones from the cache.

    .. math:: (A x)_{\mathrm{new}} = A_{\mathrm{new}} \, [x_{\mathrm{past}}; x_{\mathrm{new}}]

    `new` holds the new values; the host's cache has the past ones. The past of any other x is in
    `layer`, which stores each x in the order in which the filter applies A.

    Shapes: A (B, H, n, M), values (B, H, M, D), new (B, H, n, D).

    Raises ValueError for a cache that was filled without this filter, and for a filter that
    forms the map.

    >>> k, v = torch.zeros(1, 1, 2, 4), torch.tensor([[[[1.0], [3.0]]]])
    >>> A = CachedOperator(Softmax(k, k, is_causal=True), v, FilterCacheLayer())
    >>> (A @ (A @ A.new)).flatten()
    tensor([1.0000, 1.5000])
    """

    def __init__(self, A: Softmax, values: Tensor, layer: FilterCacheLayer) -> None:
        self.A, self.values, self.layer, self.num_inputs = A, values, layer, 0
        self.new = values[..., values.shape[-2] - A.q.shape[-2] :, :]

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
        if x is self.new:
            return self.values
        rows, i = self.layer.rows, self.num_inputs
        self.num_inputs += 1
        past = self.values.shape[-2] - x.shape[-2]
        if past == 0:
            del rows[i:]  # rows of an earlier sequence are invalid
        else:
            if i >= len(rows) or rows[i].shape[-2] < past:
                raise ValueError(
                    "the cache was filled without this filter: start from an empty one"
                )
            x = torch.cat([rows[i], x], -2)
        self.layer.store_rows(i, x)
        return x[..., x.shape[-2] - self.values.shape[-2] :, :]


def find_filter_cache_layer(past: Cache, module: Any, length: int) -> FilterCacheLayer:
    """Return the cache layer of an attention module, converted to keep a filter's rows too.

    Raises ValueError for a module without a layer of its own, for a cache that does not keep all
    tokens (static, quantized, paged), and if its keys are not `length` tokens.
    """
    index = getattr(module, "layer_idx", None)
    if index is None or index >= len(past.layers):
        raise ValueError("a filter needs a cache with a layer for each attention module")
    layer = past.layers[index]
    if type(layer) in _FILTER_LAYERS:
        layer.__class__ = _FILTER_LAYERS[type(layer)]
        layer.rows = []
    if type(layer) not in _FILTER_LAYERS.values():
        raise ValueError(
            f"a filter needs the past tokens of a DynamicCache, not of {type(layer).__name__}: "
            "change the cache or set use_cache=False"
        )
    # a sliding layer that records its past keeps more than it returns
    records = getattr(layer, "record_past", False)
    num_keys = -1 if layer.keys is None else layer.keys.shape[-2]
    if num_keys != layer.count_kept(length) and not (records and num_keys > length):
        raise ValueError("the cache and the keys differ in length: start from an empty cache")
    return layer
