"""The base of all adapters: a host's attention with a filter."""

from typing import Any, ClassVar

from torch import nn

# the names under which libraries store their number of heads
NUM_HEADS_NAMES = (
    "num_attention_heads",
    "num_heads",
    "attention_heads",
    "n_heads",
    "n_head",
    "nhead",
    "heads",
)


class Filtered:
    """The base of all adapters: a host's attention with a filter.

    `host_class` is the library's class, which `detach` restores. `slots` are the attributes that
    `attach` sets. `takes_reparam` is True for a class with projections `qkv` and `proj`.
    """

    host_class: ClassVar[type[nn.Module]]
    slots: ClassVar[tuple[str, ...]] = ("filter",)
    takes_reparam: ClassVar[bool] = True
    filter: nn.Module
    kernel: nn.Module | None

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads of a module of the host's class."""
        return module.num_heads

    def on_attach(self) -> None:
        """Change settings of the host outside of the module, after its filter is set."""

    def on_detach(self) -> None:
        """Undo `on_attach`, before the filter is removed."""
