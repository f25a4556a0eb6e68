"""The adapter of any module that applies one map: its forward runs, the product is replaced."""

import inspect
from functools import cache
from types import FunctionType
from typing import Any, ClassVar

from torch import nn

from attention_core.hosts.adapter import NUM_HEADS_NAMES, Filtered
from attention_core.hosts.hook_points import find_import_path
from attention_core.hosts.interception import FilterMap
from attention_core.hosts.known_classes import HEAD_AXIS, KERNEL_CLASSES, KNOWN_CLASSES

SDPA = "scaled_dot_product_attention"


class FilteredForward(Filtered):
    """An attention whose one product of map and values is filtered.

    A map that the host returns is A. Its forward pass raises ValueError if the host does not apply
    exactly one square map.
    """

    takes_reparam = False
    head_axis: ClassVar[int]
    is_known: ClassVar[bool]

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads that a module or its config stores under a common name."""
        known = KNOWN_CLASSES.get(find_import_path(module))
        if known and known.num_heads:
            return known.num_heads
        for holder in (module, getattr(module, "config", None)):
            for name in NUM_HEADS_NAMES:
                if isinstance(num_heads := getattr(holder, name, None), int):
                    return num_heads
        raise ValueError(
            f"{type(module).__name__} stores no number of heads: set one of its attributes "
            f"{', '.join(NUM_HEADS_NAMES)} before attach"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's forward with its map filtered."""
        return self.run_filtered(None, args, kwargs)

    def run_filtered(self, make_cached: Any, args: Any, kwargs: Any) -> Any:
        """Run the host's forward; `make_cached(A, v, n)` makes the operator of n new tokens."""
        products: list[str] = []
        x = args[0] if args else kwargs.get("x")
        with FilterMap(self, products, [], make_cached, x):
            y: Any = self.host_class.forward(self, *args, **kwargs)
        if len(products) != 1:
            raise ValueError(
                f"{self.host_class.__name__} applied {len(products)} attention maps in a "
                "forward pass, and its filter needs exactly one"
            )
        return y

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the host's class: the adapter's class is made at run time."""
        return _make_empty, (self.host_class, type(self).__bases__[0]), self.__dict__


@cache
def make_generic_adapter(host_class: Any, base: Any = FilteredForward) -> type[FilteredForward]:
    """Return the adapter of a class."""
    path = f"{host_class.__module__}.{host_class.__qualname__}"
    known = KNOWN_CLASSES.get(path)
    axis = HEAD_AXIS if known is None else known.head_axis
    body = {"host_class": host_class, "head_axis": axis, "is_known": known is not None}
    body |= {"__module__": __name__}
    body |= {"slots": ("filter", "kernel")} if path in KERNEL_CLASSES else {}
    return type(f"Filtered{host_class.__name__}", (base, host_class), body)


def find_generic_adapter(module: nn.Module) -> type[FilteredForward] | None:
    """Return the adapter of a module that is known to have one square map, None for any other."""
    host_class: Any = type(module)
    return make_generic_adapter(host_class) if has_square_map(module) else None


def has_square_map(module: nn.Module) -> bool | None:
    """Return True if the map of a module is known to be square, False if not, None if unknown."""
    known = KNOWN_CLASSES.get(find_import_path(module))
    return None if known is None else known.is_square(module)


def calls_sdpa(host_class: type[nn.Module]) -> bool:
    """Return True if the forward of a class names `scaled_dot_product_attention`."""
    code = getattr(inspect.unwrap(host_class.forward), "__code__", None)
    return code is not None and SDPA in code.co_names


def applies_map(host_class: type[nn.Module]) -> bool:
    """Return True if a method of a class, or a function that it calls, applies a map."""
    methods = [value for value in vars(host_class).values() if isinstance(value, FunctionType)]
    called = [
        function
        for method in methods
        for name in method.__code__.co_names
        if isinstance(function := method.__globals__.get(name), FunctionType)
        and function.__module__ == host_class.__module__
    ]
    return any({SDPA, "softmax"} & set(code.__code__.co_names) for code in methods + called)


def _make_empty(host_class: Any, base: Any) -> Any:
    adapter = make_generic_adapter(host_class, base)
    return adapter.__new__(adapter)
