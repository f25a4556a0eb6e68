"""The class of a filtered attention, made from transformers' own."""

import inspect
from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from attention_core.adapters import Filtered
from attention_core.filters.plain import Plain
from attention_core.hosts.transformers.interface import EAGER, NAME, ours, register

HEADS = ("num_attention_heads", "num_heads", "n_heads")
CACHES = ("past_key_values", "layer_past")
OTHERS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


class FilteredInterface(Filtered):
    """An attention of transformers whose config names our attention function.

    Raises ValueError where it is called as cross-attention with a filter other than Plain, and
    where its config has been given another attention function.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> FilteredInterface.spectral
    False
    """

    spectral = False
    takes: ClassVar[tuple[str, ...]]
    config: Any
    former: str | None

    @classmethod
    def count_heads(cls, module: nn.Module) -> int:
        """How many heads a module has: some know only their config.

        Source: https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama

        >>> FilteredInterface.count_heads(nn.MultiheadAttention(8, 2))
        2
        """
        for name in HEADS:
            if isinstance(heads := getattr(module, name, None), int):
                return heads
        return getattr(module, "config").num_attention_heads  # noqa: B009

    def attached(self) -> None:
        """Name our function in the config, and remember the one before.

        Source: https://huggingface.co/docs/transformers/attention_interface

        >>> FilteredInterface.attached.__name__
        'attached'
        """
        self.former = getattr(self, "former", self.config._attn_implementation)
        # not by its setter, which would reach the configs of other parts of the model
        self.config._attn_implementation_internal = ours(self.config._attn_implementation)

    def detached(self) -> None:
        """Name the function before in the config again.

        Source: https://huggingface.co/docs/transformers/attention_interface

        >>> FilteredInterface.detached.__name__
        'detached'
        """
        if self.former not in (NAME, EAGER):
            self.config._attn_implementation_internal = self.former
        del self.former

    @staticmethod
    def noted(model: nn.Module) -> None:
        """Describe the filters in the configs of a model.

        Source: https://huggingface.co/docs/transformers/main_classes/configuration

        >>> FilteredInterface.noted(nn.Linear(2, 2))
        """
        from attention_core.hosts.transformers.saving import describe  # it attaches, too

        describe(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Attend as transformers does; its cache goes to the attention function too."""
        name = self.config._attn_implementation
        if name not in (NAME, EAGER):
            raise ValueError(
                f"the attention function is {name!r}, which passes the filter by: "
                f"set_attn_implementation({ours(name)!r}) or detach"
            )
        named = dict(zip(self.takes, args, strict=False)) | kwargs
        if not isinstance(self.filter, Plain):
            if any(isinstance(named.get(k), Tensor) for k in OTHERS if k in self.takes):
                raise ValueError(
                    f"{self.stock.__name__} is called as cross-attention, which stays Plain: its "
                    "map has no powers"
                )
            past = next((named[k] for k in CACHES if named.get(k) is not None), None)
            if past is not None:
                own = isinstance(past, EncoderDecoderCache)
                kwargs["past"] = past.self_attention_cache if own else past
        return self.stock.forward(self, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A class made at run time is copied and pickled by the one that it is made from."""
        return _blank, (self.stock,), self.__dict__


def _blank(stock: Any) -> Any:
    made = adapter(stock)
    assert made is not None
    return made.__new__(made)


@cache
def adapter(stock: Any) -> type[FilteredInterface] | None:
    """The filtered class of an attention class, None for a class that is no such attention.

    It is one where its forward looks its function up in AttentionInterface, and takes the tokens
    themselves.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> adapter(nn.Linear) is None
    True
    """
    forward = inspect.unwrap(stock.forward)
    looked_up = getattr(forward, "__code__", None)
    if looked_up is None or "ALL_ATTENTION_FUNCTIONS" not in looked_up.co_names:
        return None
    parameters = tuple(inspect.signature(forward).parameters)[1:]
    if "hidden_states" not in parameters:
        return None
    register()
    body = {"stock": stock, "takes": parameters, "__module__": __name__}
    return type(f"Filtered{stock.__name__}", (FilteredInterface, stock), body)
