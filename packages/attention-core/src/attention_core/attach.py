"""Give the attention modules of a finished model a mechanism, and take it back.

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
from torch.nn.utils import parametrize

from attention_core.filters.plain import Plain
from attention_core.seats import Place, Seat, host_name, places, rise, sit, width

# by name, so that no library is imported for the sake of a table
HOSTS = {
    "timm.layers.attention.Attention": "attention_core.hosts.timm.FilteredAttention",
    "timm.models.cait.TalkingHeadAttn": "attention_core.hosts.timm.FilteredTalkingHeads",
    "timm.models.swin_transformer.WindowAttention": "attention_core.hosts.timm.FilteredWindows",
}


class Filtered:
    """A host's attention with a filter: the adapter's half that knows no host.

    `stock` is the class to go back to; `heads` names the attribute that counts them; `slots`
    are the parts that it is given.

    Source: https://docs.python.org/3/reference/datamodel.html (assignment to __class__)

    >>> Filtered.heads
    'num_heads'
    """

    stock: ClassVar[type[nn.Module]]
    heads: ClassVar[str] = "num_heads"
    slots: ClassVar[tuple[str, ...]] = ("filter",)
    filter: nn.Module
    kernel: nn.Module | None


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
    model: nn.Module,
    make_filter: Callable[[int], nn.Module] = Plain,
    layers: str = ":",
    *,
    kernel: Callable[[int, int], nn.Module] | None = None,
    tokens: Callable[[int], nn.Module] | None = None,
    seat: Seat = "attention",
    reparam: Callable[[int], Any] | None = None,
) -> nn.Module:
    """Give a model's self-attention layers a mechanism, in place, whatever it is a function of.

    `make_filter(num_heads)` makes the filter of one layer, `kernel(width, num_heads)` what takes
    the place of its softmax, `reparam(width)` the spectrum of its value and output projections.
    `tokens(width)` makes a function of tokens, which sits after the `attention` (of Swin, over
    the map of the stage, or inside each `window`), after both `branches`, or before all `norms`.
    `layers` is a Python slice as text over the layers in the order of the model; over the norms
    where they are the seat. Parameters keep their names, new ones are `<module>.filter.*`,
    `.kernel.*` and `.tokens.*`. A layer whose filter is Plain may be given another.

    Raises ValueError for a model without known attention (naming the classes that are known),
    for a bad slice, for a layer that has a filter already, and for a seat or a kernel that the
    model has no place for. The model is then as it was.

    Source: https://arxiv.org/abs/2312.04234, section 3

    >>> from attention_core import GFSA
    >>> attach(nn.Linear(2, 2), GFSA)
    Traceback (most recent call last):
    ValueError: no attention to filter in Linear: looked for timm.layers.attention.Attention, ...
    """
    given = make_filter is not Plain or kernel is not None or reparam is not None
    # norms are counted by themselves, and are no attention's
    chosen = _chosen(model, layers) if given or tokens is None or seat != "norms" else []
    if reparam is not None and any(parametrize.is_parametrized(m.proj) for m in chosen):
        raise ValueError("a layer has a reparameterised projection already: detach it first")
    # all parts are made before any is put in: one that fails leaves the model as it was
    filters = [make_filter(_heads(module)) for module in chosen]
    kernels = [None if kernel is None else _kernel(kernel, module) for module in chosen]
    seated = [] if tokens is None else _seated(model, tokens, seat, layers)
    spectra = [] if reparam is None else [reparam(m.proj.in_features) for m in chosen]
    for module, *parts in zip(chosen, filters, kernels, strict=True):
        module.__class__ = _adapter(module)
        for slot, part in zip(module.slots, parts, strict=False):
            setattr(module, slot, None if part is None else _like(part, module))
    for made, module, place in seated:
        sit(_like(made, module), module, place)
    for spectrum, module in zip(spectra, chosen, strict=bool(spectra)):
        dim = module.proj.in_features
        spectrum.tie(module.qkv, module.proj, slice(2 * dim, 3 * dim))
    return model


def detach(model: nn.Module) -> nn.Module:
    """Take every mechanism off a model, in place: the original classes, the original parameters.

    The spectrum of a reparameterised projection stays, as the weight that it last made.

    Source: the inverse of `attach`

    >>> detach(nn.Linear(2, 2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    rise(model)
    filtered: list[Any] = [module for module in model.modules() if isinstance(module, Filtered)]
    for module in filtered:
        if parametrize.is_parametrized(module.proj, "weight"):
            parametrize.remove_parametrizations(module.proj, "weight")
        for slot in module.slots:
            delattr(module, slot)
        module.__class__ = module.stock
    return model


def _chosen(model: nn.Module, layers: str) -> list[Any]:
    found = [m for m in model.modules() if host_name(m) in HOSTS]
    if not found:
        raise ValueError(
            f"no attention to filter in {type(model).__name__}: looked for {', '.join(HOSTS)}"
        )
    chosen = [found[i] for i in select(layers, len(found))]
    if any(isinstance(m, Filtered) and _busy(m) for m in chosen):
        raise ValueError("a layer has a filter already: detach it first")
    return chosen


def _busy(module: Filtered) -> bool:
    return not isinstance(module.filter, Plain) or getattr(module, "kernel", None) is not None


def _seated(
    model: nn.Module, tokens: Callable[[int], nn.Module], seat: Seat, layers: str
) -> list[tuple[nn.Module, nn.Module, Place]]:
    chosen = [kind[i] for kind in places(model, seat) for i in select(layers, len(kind))]
    if any(hasattr(module.get_submodule(place.at), "tokens") for module, place in chosen):
        raise ValueError(f"a place at seat {seat!r} is taken already: detach it first")
    return [(tokens(width(module, place)), module, place) for module, place in chosen]


def _kernel(make: Callable[[int, int], nn.Module], module: Any) -> nn.Module:
    if "kernel" not in _adapter(module).slots:
        raise ValueError(f"{host_name(module)} has no place for a kernel")
    return make(module.proj.in_features, _heads(module))


def _heads(module: nn.Module) -> int:
    return getattr(module, _adapter(module).heads)


def _adapter(module: nn.Module) -> type[Filtered]:
    home, _, name = HOSTS[host_name(module)].rpartition(".")
    return getattr(import_module(home), name)


def _like(part: nn.Module, module: nn.Module) -> nn.Module:
    # a new module is in training mode and on the CPU, whatever it is put into
    held = next(chain(module.parameters(), module.buffers()), None)
    return part.train(module.training).to(None if held is None else held.device)
