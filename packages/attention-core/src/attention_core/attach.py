"""Give the attention modules of a finished model a mechanism, and take it back.

Attaching swaps a module's class for its adapter, so that parameters, their names and the
optimiser's references stay as they are.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from attention_core.adapters import PADDED, Filtered, adapter, attentions, tell_of_others
from attention_core.filters.plain import Plain
from attention_core.hook_points import Place, Position, host_name, places, rise, sit, width
from attention_core.tokens import LayerScale

__all__ = ["Filtered", "attach", "detach", "select_layers"]


def select_layers(layers: str, depth: int) -> range:
    """The layers that a slice, written as text, names.

    Raises ValueError for text that is no slice, for a number (YAML reads a bare 6:12 as a
    base-60 integer) and for a slice that names none of the layers.

    Source: https://yaml.org/type/int.html

    >>> list(select_layers("1::2", 6))
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
    position: Position = "attention",
    reparam: Callable[[int], Any] | None = None,
) -> nn.Module:
    """Give a model's self-attention layers a mechanism, in place, whatever it is a function of.

    `make_filter(num_heads)` makes the filter of one layer, `kernel(width, num_heads)` what takes
    the place of its softmax, `reparam(width)` the spectrum of its value and output projections.
    `tokens(width)` makes a function of tokens, which sits after the `attention` (of Swin, over
    the map of the stage, or inside each `window`), after both `branches`, before all `norms`, or
    on the `residual` sum of attention before its norm (BERT); it sees which tokens are real.
    `layers` is a Python slice as text over the layers in the order of the model, an encoder's
    before its decoder's; over the norms where they are the position. Cross-attention stays Plain.
    Parameters keep their names, new ones are `<module>.filter.*`, `.kernel.*` and `.tokens.*`. A
    layer whose filter is Plain may be given another. Attention that no filter knows stays as it
    is, with a warning. `save_pretrained` describes what the whole model was given, not a part.

    Raises ValueError for a model without known attention (naming the classes that are known),
    for a bad slice, for a layer that has a filter already, for a position or a kernel that the
    model has no place for, and for tokens that would meet in causal attention or, in a model of
    transformers or speechbrain, at its norms, which know no mask. The model is then as it was.

    Source: https://arxiv.org/abs/2312.04234, section 3

    >>> from attention_core import GFSA
    >>> attach(nn.Linear(2, 2), GFSA)
    Traceback (most recent call last):
    ValueError: no attention to filter in Linear: looked for timm.layers.attention.Attention, ...
    """
    given = make_filter is not Plain or kernel is not None or reparam is not None
    # norms are counted by themselves, and are no attention's
    chosen = _chosen(model, layers) if given or tokens is None or position != "norms" else []
    if reparam is not None:
        _check_spectra(chosen)
    # all parts are made before any is put in: one that fails leaves the model as it was
    filters = [make_filter(_heads(module)) for module in chosen]
    kernels = [None if kernel is None else _kernel(kernel, module) for module in chosen]
    seated = [] if tokens is None else _seated(model, tokens, position, layers)
    spectra = [] if reparam is None else [reparam(m.proj.in_features) for m in chosen]
    for module, *parts in zip(chosen, filters, kernels, strict=True):
        module.__class__ = _adapter(module)
        for slot, part in zip(module.slots, parts, strict=False):
            setattr(module, slot, None if part is None else _like(part, module))
        module.attached()
    for made, module, place in seated:
        sit(_like(made, module), module, place, position)
    for spectrum, module in zip(spectra, chosen, strict=bool(spectra)):
        dim = module.proj.in_features
        spectrum.tie(module.qkv, module.proj, slice(2 * dim, 3 * dim))
    _note(model)
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
        if module.spectral and parametrize.is_parametrized(module.proj, "weight"):
            parametrize.remove_parametrizations(module.proj, "weight")
        module.detached()
        for slot in module.slots:
            delattr(module, slot)
        module.__class__ = module.stock
    _note(model)
    return model


def _chosen(model: nn.Module, layers: str) -> list[Any]:
    found = attentions(model)
    chosen = [found[i] for i in select_layers(layers, len(found))]
    if any(isinstance(m, Filtered) and _busy(m) for m in chosen):
        raise ValueError("a layer has a filter already: detach it first")
    tell_of_others(model)
    return chosen


def _busy(module: Filtered) -> bool:
    return not isinstance(module.filter, Plain) or getattr(module, "kernel", None) is not None


def _seated(
    model: nn.Module, tokens: Callable[[int], nn.Module], position: Position, layers: str
) -> list[tuple[nn.Module, nn.Module, Place]]:
    chosen = [kind[i] for kind in places(model, position) for i in select_layers(layers, len(kind))]
    if any(hasattr(module.get_submodule(place.at), "tokens") for module, place in chosen):
        raise ValueError(f"a place at position {position!r} is taken already: detach it first")
    made = [(tokens(width(module, place)), module, place) for module, place in chosen]
    hosts = (host_name(module) for module in model.modules())
    blind = position == "norms" and any(host.startswith(PADDED) for host in hosts)
    for part, module, place in made:
        attention = None if place.attention is None else module.get_submodule(place.attention)
        causal = getattr(attention, "is_causal", False)
        if (blind or causal) and not isinstance(part, LayerScale):
            why, others = f"{host_name(module)} is causal", "later ones"
            if blind:
                why = f"a norm of {type(model).__name__} knows no mask"
                others = f"padding or {others}"
            raise ValueError(
                f"{why}, and {type(part).__name__} would let a token see {others}: of the "
                "functions of tokens LayerScale alone looks at each by itself"
            )
    return made


def _kernel(make: Callable[[int, int], nn.Module], module: Any) -> nn.Module:
    if "kernel" not in _adapter(module).slots:
        raise ValueError(f"{host_name(module)} has no place for a kernel")
    return make(module.proj.in_features, _heads(module))


def _note(model: nn.Module) -> None:
    for noted in {host.noted for m in model.modules() if (host := adapter(m)) is not None}:
        noted(model)


def _check_spectra(chosen: list[Any]) -> None:
    for module in chosen:
        if not _adapter(module).spectral:
            raise ValueError(f"{host_name(module)} has no place for a reparameterisation")
        if parametrize.is_parametrized(module.proj):
            raise ValueError("a layer has a reparameterised projection already: detach it first")
        dim = module.proj.in_features
        if (module.qkv.out_features, module.proj.out_features) != (3 * dim, dim):
            raise ValueError(f"{host_name(module)} has no square projections to reparameterise")


def _heads(module: nn.Module) -> int:
    return _adapter(module).count_heads(module)


def _adapter(module: nn.Module) -> type[Filtered]:
    made = adapter(module)
    assert made is not None  # it is one of `attentions`
    return made


def _like(part: nn.Module, module: nn.Module) -> nn.Module:
    # a new module is in training mode and on the CPU, whatever it is put into
    held = next(chain(module.parameters(), module.buffers()), None)
    return part.train(module.training).to(None if held is None else held.device)
