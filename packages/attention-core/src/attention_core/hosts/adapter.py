"""The base of all adapters: a host's attention with a filter."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attention_core import spectral

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
    """The base of all adapters: a host's attention with a filter, y = H(A) v W_O.

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


def find_active(part: Any) -> Any:
    """Return the part that is in use, where PEFT keeps a copy for each adapter."""
    copies = getattr(part, "modules_to_save", None)
    if not isinstance(copies, nn.ModuleDict):
        return part
    is_used = part.active_adapters and not part.disable_adapters
    return copies[part.active_adapters[0]] if is_used else part.original_module


def form_filtered_map(filter: nn.Module, A: Any) -> Tensor:
    """Return the map H to look at, which has no dropout."""
    A.dropout = 0.0
    return spectral.matrix(filter, A)


def check_self_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError for keys or values of other tokens than the queries."""
    if not all(other is q or torch.equal(other, q) for other in (k, v)):
        raise ValueError("called as cross-attention, which stays Plain: its map has no powers")
