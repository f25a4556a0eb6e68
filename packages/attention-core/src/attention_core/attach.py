"""Give the attention modules of a finished model a filter, and take it back.

A host adapter (`hosts/<library>.py`) is a subclass of the library's attention class and of
`Filtered`. Attaching swaps a module's class for its adapter, so that parameters, their names and
the optimiser's references stay as they are.
"""

import re
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar

from torch import nn

# by name, so that no library is imported for the sake of a table
HOSTS = {
    "timm.layers.attention.Attention": "attention_core.hosts.timm.FilteredAttention",
}


class Filtered:
    """A host's attention with a filter: the adapter's half that knows no host.

    `stock` is the class to go back to; `heads` names the attribute that counts them.

    Source: https://docs.python.org/3/reference/datamodel.html (assignment to __class__)

    >>> Filtered.heads
    'num_heads'
    """

    stock: ClassVar[type[nn.Module]]
    heads: ClassVar[str] = "num_heads"
    filter: nn.Module


def select(layers: str, depth: int) -> range:
    """The layers that a slice, written as text, names.

    Raises ValueError for text that is no slice, for a number (YAML reads a bare 6:12 as a
    base-60 integer) and for a slice that names none of the layers.

    Source: https://yaml.org/type/int.html

    >>> list(select("1::2", 6))
    [1, 3, 5]
    """
    if not isinstance(layers, str) or not re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", layers.strip()):
        raise ValueError(
            f'layers must be a Python slice as text, such as ":", "1::2" or "6:", got {layers!r}; '
            "quote it in YAML"
        )
    parts = [int(part) if part.strip() else None for part in layers.split(":")]
    if parts[2:] == [0]:
        raise ValueError(f"layers {layers!r} has a step of 0")
    chosen = range(depth)[slice(*parts)]
    if not chosen:
        raise ValueError(f"layers {layers!r} names none of the {depth} layers")
    return chosen


def attach(
    model: nn.Module, make_filter: Callable[[int], nn.Module], layers: str = ":"
) -> nn.Module:
    """Filter the self-attention of a model's layers, in place; every filter starts as it does.

    `make_filter(num_heads)` makes the filter of one layer; `layers` is a Python slice as text
    over the attention modules in the order of the model. Parameters keep their names; the
    filter's are `<module>.filter.*`.

    Raises ValueError for a model without known attention (naming the classes that are known),
    for a bad slice, and for a layer that has a filter already.

    Source: https://arxiv.org/abs/2312.04234, section 3

    >>> from attention_core import GFSA
    >>> attach(nn.Linear(2, 2), GFSA)
    Traceback (most recent call last):
    ValueError: no attention to filter in Linear: looked for timm.layers.attention.Attention
    """
    found = [m for m in model.modules() if isinstance(m, Filtered) or _name(m) in HOSTS]
    if not found:
        raise ValueError(
            f"no attention to filter in {type(model).__name__}: looked for {', '.join(HOSTS)}"
        )
    chosen = [found[i] for i in select(layers, len(found))]
    if any(isinstance(module, Filtered) for module in chosen):
        raise ValueError("a layer has a filter already: detach it first")
    # all filters are made before any is put in: one that fails leaves the model as it was
    made = [make_filter(getattr(module, _adapter(module).heads)) for module in chosen]
    for module, filter in zip(chosen, made, strict=True):
        _put(filter, module)
    return model


def detach(model: nn.Module) -> nn.Module:
    """Take every filter off a model, in place: the original classes, the original parameters.

    Source: the inverse of `attach`

    >>> detach(nn.Linear(2, 2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    for module in model.modules():
        if isinstance(module, Filtered):
            del module.filter
            module.__class__ = module.stock  # type: ignore[assignment]
    return model


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _adapter(module: nn.Module) -> type[Filtered]:
    home, _, name = HOSTS[_name(module)].rpartition(".")
    return getattr(import_module(home), name)


def _put(filter: nn.Module, module: Any) -> None:
    # a new module is in training mode and on the CPU, whatever it is put into
    filter.train(module.training)
    held = next(chain(module.parameters(), module.buffers()), None)
    if held is not None:
        filter.to(held.device)
    module.__class__ = _adapter(module)
    module.filter = filter
