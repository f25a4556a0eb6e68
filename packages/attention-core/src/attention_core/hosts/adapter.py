"""The base of all adapters: a host's attention with a filter."""

import sys
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from attention_core import spectral

# the names under which libraries store their number of heads
NUM_HEADS_NAMES = "num_attention_heads num_heads attention_heads n_heads n_head nhead heads groups"
_is_leaf = fx.Tracer.is_leaf_module  # torch.fx takes a filtered module as a whole
fx.Tracer.is_leaf_module = lambda *x, **k: isinstance(x[1], Filtered) or _is_leaf(*x, **k)
_add_hook = cache(nn.modules.module.register_module_module_registration_hook)  # once
CROSS_ATTENTION = "called as cross-attention, which stays Plain: leave it out by layers= or where="


class Filtered:
    """The base of all adapters: a host's attention with a filter, y = H(A) v W_O.

    `attach` sets the `slots`. `projections` lists pairs of names: the weight whose last rows make
    the values, and the output projection.
    """

    host_class: ClassVar[type[nn.Module]]
    slots: ClassVar[tuple[str, ...]] = ("filter",)
    projections: ClassVar[tuple[tuple[str, str], ...]] = ()
    no_kernel: ClassVar[str] = "it forms its map itself"
    filter: nn.Module
    kernel: nn.Module | None
    made_by: ClassVar[tuple[Any, ...]] = ()  # a function and its arguments
    spectrum: tuple[Any, ...] = ()  # a tuple, as it is a child of the output projection

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads of a module of the host's class."""
        return module.num_heads

    @classmethod
    def find_dim(cls, module: Any) -> int:
        """Return the number of channels of all heads."""
        return module.proj.in_features

    @classmethod
    def refuse_kernel(cls, module: Any) -> str | None:
        """Return the reason why a module takes no kernel, None if it takes one."""
        return None if "kernel" in cls.slots else cls.no_kernel

    def on_attach(self) -> None:
        """Change settings of the host outside of the module, after its filter is set."""

    def on_detach(self) -> None:
        """Undo `on_attach`, before the filter is removed."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle a module by its class, or the maker of one that is made at run time."""
        return make_empty, self.made_by or (type(self),), self.__dict__

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which reads the source of a module."""
        raise ValueError(
            f"torch.jit.script cannot read a filtered {self.host_class.__name__}: use "
            "torch.jit.trace or torch.export, or detach the mechanism"
        )


def find_num_heads(module: Any) -> int | None:
    """Return the number of heads that a module or its config stores under a common name."""
    holders = (module, getattr(module, "config", None))
    found = (getattr(holder, name, None) for holder in holders for name in NUM_HEADS_NAMES.split())
    return next((number for number in found if isinstance(number, int)), None)


def watch_peft(module: nn.Module | None = None, *registered: Any) -> None:
    """Import what PEFT needs to know of mechanisms where PEFT is there; as a hook, if it wraps."""
    if type(module).__module__.startswith("peft.") or (module is None and "peft" in sys.modules):
        import_module("attention_core.hosts.peft")
    if module is None:
        _add_hook(watch_peft)


def make_empty(make_adapter: Any, *args: Any) -> Any:
    """Return an adapter for `copy` and `pickle`, of a class or of the maker of one."""
    watch_peft()  # a process that only unpickles never calls `attach`
    adapter = make_adapter(*args) if args else make_adapter
    return adapter.__new__(adapter)


def find_active(part: Any) -> Any:
    """Return the part that is in use, where PEFT keeps a copy for each adapter."""
    copies = getattr(part, "modules_to_save", None)
    if not isinstance(copies, nn.ModuleDict):
        return part
    is_used = part.active_adapters and not part.disable_adapters
    return copies[part.active_adapters[0]] if is_used else part.original_module


def find_H_dropout(module: Any, p: float) -> float:
    """Return the rate of dropout on H, where `dropout_on_H` takes that of the map in its place."""
    kind = getattr(find_active(module.filter), "dropout_mask", None)
    return p if module.training and kind == "filtered" else 0.0


def form_filtered_map(filter: nn.Module, A: Any) -> Tensor:
    """Return the map H to look at, which has no dropout."""
    A.dropout = 0.0
    return spectral.matrix(filter, A)


def check_self_attention(q: Tensor, *others: Tensor) -> None:
    """Raise ValueError for keys, or other inputs, of other tokens than the queries."""
    is_traced = torch.compiler.is_compiling()  # a compiler cannot branch on values
    if not all(other is q or is_traced or torch.equal(other, q) for other in others):
        raise ValueError(f"an attention is {CROSS_ATTENTION}")
