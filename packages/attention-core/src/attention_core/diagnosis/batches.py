"""A batch for a model: how it is passed, its masks of valid tokens, and its slices."""

import inspect
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, Self

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

# masks (B, N) of an encoder that are True for a valid token, and for padding; `mask` may be either
MASKS = (("attention_mask", "valid_mask", "token_mask"),
         ("src_key_padding_mask", "key_padding_mask", "padding_mask"))  # fmt: skip
DECODER_MASKS = ("decoder_attention_mask",), ("tgt_key_padding_mask",)


class ModelInputs:
    """The arguments of a model: one tensor, a tuple of arguments, or a mapping of keywords."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        if isinstance(batch, Tensor):
            self.args = (batch,)
        elif isinstance(batch, tuple | list):
            self.args = tuple(batch)
        elif isinstance(batch, Mapping) or hasattr(batch, "keys"):
            self.kwargs = dict(batch)
        else:
            raise TypeError(
                "a batch is a tensor, a tuple of arguments or a mapping of keyword arguments, got "
                f"{type(batch).__name__}"
            )
        tensors = [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]
        if not tensors or tensors[0].ndim == 0 or not len(tensors[0]):
            text = "no tensor (those of a dataclass are not found), or an empty one"
            raise ValueError(f"the batch has no samples: {text}")
        self.num_samples = len(tensors[0])
        base: Any = getattr(model, "get_base_model", lambda: model)()  # peft hides its arguments
        if "use_cache" in inspect.signature(base.forward).parameters and hasattr(model, "config"):
            self.kwargs.setdefault("use_cache", False)  # a cached step has no square map
        self._names = list(inspect.signature(model.forward).parameters)

    def run(self, model: nn.Module) -> Any:
        """Call the model."""
        return model(*self.args, **self.kwargs)

    def find_mask(self, is_decoder: bool, shape: tuple[int, int]) -> Tensor | None:
        """Return the batch's mask of valid tokens of a shape (B, N), None if it has none."""
        given = dict(zip(self._names, self.args, strict=False)) | self.kwargs
        valid, padding = DECODER_MASKS if is_decoder else MASKS
        for name in (*valid, *padding):
            mask = given.get(name)
            if isinstance(mask, Tensor) and mask.shape == shape:
                if mask.is_floating_point() and name in padding:
                    continue  # added to the logits
                return mask.bool() if name in valid else ~mask.bool()
        labels = given.get("labels") if is_decoder else None
        if isinstance(labels, Tensor) and labels.shape == shape and (labels == -100).any():
            mask = labels != -100  # transformers pads them so
            return mask if (mask.sum(1) > 1).all() else None
        return None

    def iterate_slices(self, size: int) -> Iterator[tuple[slice, Self]]:
        """Yield the samples in slices, with the inputs of each; other tensors stay whole."""
        for start in range(0, self.num_samples, size):
            part, few = slice(start, min(start + size, self.num_samples)), copy(self)

            def cut(x: Any, part: slice = part) -> Any:
                has_samples = isinstance(x, list | tuple) or getattr(x, "ndim", 0) > 0
                return x[part] if has_samples and len(x) == self.num_samples else x

            def is_texts(x: Any) -> bool:
                return isinstance(x, list | tuple) and {*map(type, x)} == {str}

            few.args, few.kwargs = tree_map(cut, (self.args, self.kwargs), is_leaf=is_texts)
            few.num_samples = part.stop - part.start
            yield part, few
