"""The adapter of any module that applies one map: its forward runs, the product is replaced."""

import inspect
from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn

from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import (
    NUM_HEADS_NAMES,
    Filtered,
    check_self_attention,
    find_active,
    find_num_heads,
)
from attention_core.hosts.hook_points import find_class_path, find_import_path
from attention_core.hosts.interception import FilterMap
from attention_core.hosts.known_classes import HEAD_AXIS, KERNEL_CLASSES, KNOWN_CLASSES

CROSS_ARGS = ("key", "context", "memory", "encoder_hidden_states")  # tokens that give the keys


class FilteredForward(Filtered):
    """An attention whose one product of map and values is filtered.

    A map that the host returns is A. Its forward pass raises ValueError if the host does not apply
    exactly one square map.
    """

    head_axis: ClassVar[int]
    forward_args: ClassVar[tuple[str, ...]]
    is_known: ClassVar[bool]

    @classmethod
    def count_heads(cls, module: Any) -> int:
        """Return the number of heads of a known class, or the one that a module stores."""
        known = KNOWN_CLASSES.get(find_import_path(module))
        if num_heads := (known and known.num_heads) or find_num_heads(module):
            return num_heads
        raise ValueError(
            f"{type(module).__name__} stores no number of heads: set one of its attributes "
            f"{NUM_HEADS_NAMES.replace(' ', ', ')} before attach"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's forward with its map filtered."""
        named = dict(zip(self.forward_args, args, strict=False)) | kwargs
        others = [x for name in CROSS_ARGS if isinstance(x := named.get(name), Tensor)]
        if others and not isinstance(find_active(self.filter), Plain):
            check_self_attention(named.get(self.forward_args[0], others[0]), *others)
        return self.run_filtered(None, args, kwargs)

    def run_filtered(self, make_cached: Any, args: Any, kwargs: Any) -> Any:
        """Run the host's forward; `make_cached(A, v, n)` makes the operator of n new tokens."""
        products: list[str] = []
        x = args[0] if args else kwargs.get("x")
        with FilterMap(self, products, [], [], make_cached, x):
            y: Any = self.host_class.forward(self, *args, **kwargs)
        if len(products) != 1:
            raise ValueError(
                f"{self.host_class.__name__} applied {len(products)} attention maps in a "
                "forward pass, and its filter needs exactly one: a softmax, then @, matmul, bmm or "
                "einsum with the values, or scaled_dot_product_attention"
            )
        return y


@cache
def make_generic_adapter(host_class: Any, base: Any = FilteredForward) -> type[FilteredForward]:
    """Return the adapter of a class."""
    path = find_class_path(host_class)
    known = KNOWN_CLASSES.get(path)
    axis = HEAD_AXIS if known is None else known.head_axis
    body = {"host_class": host_class, "head_axis": axis, "is_known": known is not None}
    body |= {"__module__": __name__, "made_by": (make_generic_adapter, host_class, base)}
    body["forward_args"] = tuple(inspect.signature(host_class.forward).parameters)[1:]
    if path in KERNEL_CLASSES:
        body["slots"] = ("filter", "kernel")
        body["projections"] = (("qkv.weight", "proj"), ("v_proj.weight", "proj"))
    return type(f"Filtered{host_class.__name__}", (base, host_class), body)


def has_square_map(module: nn.Module) -> bool | None:
    """Return True if the map of a module is known to be square, False if not, None if unknown."""
    if getattr(module, "sequence_reduction_ratio", 1) > 1:  # transformers' SegFormer
        return False
    known = KNOWN_CLASSES.get(find_import_path(module))
    return None if known is None else known.is_square(module)
