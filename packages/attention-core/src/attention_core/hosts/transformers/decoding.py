"""Filters of a map of which only the new rows are at hand: generation with a cache.

The map of a step is (n, M), n new queries and M keys. `A (A v)` needs `A v` of all M tokens: the
rows of the earlier ones are kept in the cache, beside the values, and share its fate.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from attention_core.operators import Softmax, apply, average


class RowLayer(DynamicLayer):
    """A layer of a cache that keeps what a filter's later applications are applied to.

    `rows[i]` are the inputs of application i + 2, for all tokens so far.

    Source: section 1 (generation) of https://huggingface.co/docs/transformers/kv_cache

    >>> RowLayer().rows
    []
    """

    rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.rows = []

    def _all(self, change: Any) -> None:
        self.rows = [change(row) for row in self.rows]

    def offload(self) -> None:
        """Move to the CPU."""
        super().offload()
        self._all(lambda row: row.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move back to the device."""
        super().prefetch()
        if self.is_initialized:
            self._all(lambda row: row.to(self.device, non_blocking=True))

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.rows = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams."""
        super().reorder_cache(beam_idx)
        self._all(lambda row: row.index_select(0, beam_idx.to(row.device)))

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens."""
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self._all(lambda row: row[..., : -abs(tokens_to_remove), :])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat the samples."""
        super().batch_repeat_interleave(repeats)
        self._all(lambda row: row.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the samples."""
        super().batch_select_indices(indices)
        self._all(lambda row: row[indices, ...])


class Incremental:
    r"""The new rows of a map, applied to tokens of which only the new ones are given.

    .. math:: (A x)_{\mathrm{new}} = A_{\mathrm{new}} \, [x_{\mathrm{past}}; x_{\mathrm{new}}]

    `new` are the new values. Their past is in the host's cache; that of anything else that A is
    applied to was kept there when it was new, in the order in which the filter applies A.

    Shapes: A (B, H, n, M), values (B, H, M, D), new (B, H, n, D).

    Raises ValueError for a cache that was filled without this filter, and where a filter forms
    the map.

    Source: https://huggingface.co/docs/transformers/kv_cache

    >>> k, v = torch.zeros(1, 1, 2, 4), torch.tensor([[[[1.0], [3.0]]]])
    >>> A = Incremental(Softmax(k, k, is_causal=True), v, RowLayer())
    >>> (A @ (A @ A.new)).flatten()
    tensor([1.0000, 1.5000])
    """

    def __init__(self, A: Softmax, values: Tensor, layer: RowLayer) -> None:
        self.A, self.values, self.layer, self.used = A, values, layer, 0
        self.new = values[..., values.shape[-2] - A.q.shape[-2] :, :]

    def __matmul__(self, x: Tensor) -> Tensor:
        """Attend to all tokens so far."""
        return apply(self.A, self._whole(x))

    def average(self, x: Tensor) -> Tensor:
        """Mean over the keys that each new query may attend to."""
        return average(self.A, self._whole(x))

    def dense(self) -> Tensor:
        """Nothing: the rows of earlier queries are gone."""
        raise ValueError("a filter that forms the map cannot go on from a cache: use_cache=False")

    def _whole(self, x: Tensor) -> Tensor:
        if x is self.new:
            return self.values
        rows, i = self.layer.rows, self.used
        self.used += 1
        past = self.values.shape[-2] - x.shape[-2]
        if past == 0:
            rows[i:] = [x]  # what is kept of an earlier use is void
            return x
        if i >= len(rows) or rows[i].shape[-2] != past:
            raise ValueError("the cache was filled without this filter: start from an empty one")
        rows[i] = torch.cat([rows[i], x], -2)
        return rows[i]


def keeping(past: Cache, module: Any, length: int) -> RowLayer:
    """The layer of a cache that is an attention module's, made to keep a filter's rows too.

    Raises ValueError for a module without a layer of its own, for a cache that does not keep all
    tokens (static, sliding, quantised, paged), and where its keys are not `length` tokens.

    Source: https://huggingface.co/docs/transformers/kv_cache

    >>> past, module = Cache(layers=[DynamicLayer()]), torch.nn.Identity()
    >>> k, module.layer_idx = torch.zeros(1, 1, 2, 4), 0
    >>> _ = past.update(k, k, 0)
    >>> keeping(past, module, 2)
    RowLayer
    """
    index = getattr(module, "layer_idx", None)
    if index is None or index >= len(past.layers):
        raise ValueError("a filter that goes on from a cache needs a layer of its own in it")
    layer = past.layers[index]
    if type(layer) is DynamicLayer:
        layer.__class__ = RowLayer
        layer.rows = []
    if type(layer) is not RowLayer:
        raise ValueError(
            f"a filter needs all past tokens: it goes on from a DynamicCache without a sliding "
            f"window, not from {type(layer).__name__}; use_cache=False does without"
        )
    if layer.keys is None or layer.keys.shape[-2] != length:
        raise ValueError("the cache and the keys differ in length: start from an empty cache")
    return layer
