"""Attach a mechanism to the attention of a finished model, and detach it again.

Attaching replaces the class of an attention module by its adapter (`hosts/<library>.py`), so that
parameters, their names and the optimizer's references to them stay.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attention_core.checks import (
    check_callables,
    check_choices,
    check_mechanism,
    check_models,
    check_optional_callables,
)
from attention_core.filters.plain import Plain
from attention_core.hook_points import (
    HOSTS,
    HookPoint,
    Position,
    find_host,
    find_host_class,
    find_import_path,
    find_positions,
    insert_tokens,
    read_dim,
    remove_tokens,
)
from attention_core.kernels.common import connect_layers
from attention_core.tokens.layerscale import LayerScale

__all__ = ["Filtered", "attach", "detach", "select_layers"]


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


def select_layers(layers: str, depth: int) -> range:
    """Return the indices that a slice, written as text, selects from `depth` layers.

    Raises ValueError for text that is no slice and for a slice that selects no layer, TypeError for
    a number (YAML reads an unquoted 6:12 as a base-60 integer).

    >>> list(select_layers("1::2", 6))
    [1, 3, 5]
    """
    is_text = isinstance(layers, str)
    if not is_text or not re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", layers.strip()):
        error = ValueError if is_text else TypeError
        raise error(
            f'layers must be a Python slice as text, such as ":", "1::2" or "6:", got {layers!r}; '
            "quote it in YAML"
        )
    bounds = [int(bound) if bound.strip() else None for bound in layers.split(":")]
    if bounds[2:] == [0]:
        raise ValueError(f"layers {layers!r} has a step of 0")
    selected = range(depth)[slice(*bounds)]
    if not selected:
        raise ValueError(f"layers {layers!r} names none of the {depth} layers")
    return selected


def adapter_for(module: nn.Module) -> type[Filtered] | None:
    """Return the adapter of a module's class, or None for a class without one."""
    return find_host(module).find_adapter(find_host_class(module))


def self_attention_modules(model: nn.Module) -> list[tuple[Any, type[Filtered]]]:
    """Return the self-attention modules of a model with their adapters, encoder before decoder.

    A module that several layers share appears once. Cross-attention is left out: its map is not
    square and has no powers.

    Raises ValueError that lists the known classes if there is none.
    """
    named = [(name, m, made) for name, m in model.named_modules() if (made := adapter_for(m))]
    found = [(m, made) for name, m, made in named if not find_host(m).is_cross_attention(name, m)]
    if found:
        return found
    model_class = type(model).__name__
    if adapter_for(model) is not None:
        raise ValueError(
            f"{model_class} is cross-attention, which stays Plain: its map has no powers"
        )
    known = ", ".join(name for names in HOSTS.values() for name in names)
    plain = "; cross-attention and decoders of speechbrain stay Plain" if named else ""
    raise ValueError(f"no attention to filter in {model_class}: looked for {known}{plain}")


def warn_unsupported_attention(model: nn.Module) -> None:
    """Warn of attention classes in a model that have no adapter, block-sparse ones for example."""
    hosts = {find_host(module) for module in model.modules()}
    if names := {name for host in hosts for name in host.find_unsupported(model)}:
        warnings.warn(
            f"{type(model).__name__} has attention that no filter supports, which stays as it is: "
            f"{', '.join(sorted(names))}",
            stacklevel=4,  # the caller of `attach`
        )


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
    """Attach a mechanism to the self-attention layers of a model, in place.

    `make_filter(num_heads)` makes the filter of one layer, `kernel(dim, num_heads)` replaces its
    softmax, `reparam(dim)` makes the spectrum of its value and output projections, and
    `tokens(dim)` makes a function of tokens. `position` says where this is called: after
    `attention` (in Swin on the map of a stage), after attention inside each `window` of Swin,
    after both `branches` of a layer, before all `norms`, or on the `residual` sum of attention
    before its norm (BERT). It receives the mask of valid tokens.

    `layers` is a Python slice as text over the self-attention layers in model order, encoder
    before decoder (over the norms if `position` is `norms`). Cross-attention stays Plain.
    Parameters keep their names; new ones are `<module>.filter.*`, `.kernel.*` and `.tokens.*`.
    A layer with a Plain filter may get another one later. A warning lists attention classes
    without an adapter. `save_pretrained` records what is attached to the whole model.

    Raises ValueError if the model has no known attention, if `layers` is no slice or selects
    nothing, if a layer has a filter already, if the model has no place for the kernel or at the
    position, and if `tokens` would leak future tokens (causal attention) or padding (norms in
    models of transformers and speechbrain, which see no mask); TypeError if a factory makes
    another kind of mechanism. After any exception the model is as it was.
    """
    check_models("attach", model=model)
    check_callables("attach", make_filter=make_filter)
    check_optional_callables("attach", kernel=kernel, tokens=tokens, reparam=reparam)
    check_choices("attach", position=(position, Position))
    changes_attention = make_filter is not Plain or kernel is not None or reparam is not None
    # norms may get tokens in a model without known attention
    only_norms = tokens is not None and position == "norms" and not changes_attention
    selected = [] if only_norms else _select_attention(model, layers)
    if reparam is not None:
        _check_projections(selected)
    filters = [
        check_mechanism("filter", make_filter(adapter.count_heads(module)))
        for module, adapter in selected
    ]
    kernels = [_make_kernel(kernel, module, adapter) for module, adapter in selected]
    inserted = [] if tokens is None else _make_tokens(model, tokens, position, layers)
    spectra = [] if reparam is None else [_make_spectrum(reparam, m) for m, _ in selected]
    with _restore_on_error(model, [m.qkv.weight for m, _ in selected] if spectra else []):
        for (module, adapter), *parts in zip(selected, filters, kernels, strict=True):
            module.__class__ = adapter
            for slot, part in zip(adapter.slots, parts, strict=False):
                setattr(module, slot, _match_device_and_mode(part, module))
            module.on_attach()
        connect_layers(kernels)
        for part, module, point in inserted:
            insert_tokens(_match_device_and_mode(part, module), module, point, position)
        for spectrum, (module, _) in zip(spectra, selected, strict=bool(spectra)):
            dim = module.proj.in_features
            spectrum.tie(module.qkv, module.proj, slice(2 * dim, 3 * dim))
        _update_configs(model)
    return model


@contextmanager
def _restore_on_error(model: nn.Module, rewritten: Sequence[Tensor]) -> Iterator[None]:
    """Restore classes, attributes, hooks and configs of a model, and the rewritten weights."""
    modules = [(module, type(module)) for module in model.modules()]
    configs = (getattr(module, "config", None) for module, _ in modules)
    holders = [*model.modules(), *(c for c in configs if hasattr(c, "__dict__"))]
    # dicts keep their identity: the handle of a hook refers to the dict that holds the hook
    dicts = [
        state
        for holder in holders
        for state in (vars(holder), *vars(holder).values())
        if isinstance(state, dict)
    ]
    saved = [(state, dict(state)) for state in dicts]
    weights = [(weight, weight.detach().clone()) for weight in rewritten]
    try:
        yield
    except BaseException:
        for module, module_class in modules:
            module.__class__ = module_class
        for state, content in saved:
            state.clear()
            state.update(content)
        with torch.no_grad():
            for weight, value in weights:
                weight.copy_(value)
        raise


def detach(model: nn.Module) -> nn.Module:
    """Remove every mechanism from a model, in place: the host's classes, its parameters.

    A reparameterised projection keeps the weight that it last had.
    """
    check_models("detach", model=model)
    remove_tokens(model)
    filtered: list[Any] = [module for module in model.modules() if isinstance(module, Filtered)]
    for module in filtered:
        if module.takes_reparam and parametrize.is_parametrized(module.proj, "weight"):
            parametrize.remove_parametrizations(module.proj, "weight")
        module.on_detach()
        for slot in module.slots:
            delattr(module, slot)
        module.__class__ = module.host_class
    _update_configs(model)
    return model


def _select_attention(model: nn.Module, layers: str) -> list[tuple[Any, type[Filtered]]]:
    found = self_attention_modules(model)
    selected = [found[i] for i in select_layers(layers, len(found))]
    for module, _ in selected:
        if isinstance(module, Filtered) and (
            not isinstance(module.filter, Plain) or getattr(module, "kernel", None) is not None
        ):
            raise ValueError("a layer has a filter already: detach it first")
    warn_unsupported_attention(model)
    return selected


def _check_projections(selected: list[tuple[Any, type[Filtered]]]) -> None:
    for module, adapter in selected:
        if not adapter.takes_reparam:
            raise ValueError(f"{find_import_path(module)} has no place for a reparameterisation")
        if parametrize.is_parametrized(module.proj):
            raise ValueError("a layer has a reparameterised projection already: detach it first")
        dim = module.proj.in_features
        if (module.qkv.out_features, module.proj.out_features) != (3 * dim, dim):
            raise ValueError(
                f"{find_import_path(module)} has no square projections to reparameterise"
            )


def _make_kernel(
    make: Callable[[int, int], nn.Module] | None, module: Any, adapter: type[Filtered]
) -> nn.Module | None:
    if make is None:
        return None
    if "kernel" not in adapter.slots:
        raise ValueError(f"{find_import_path(module)} has no place for a kernel")
    return check_mechanism("kernel", make(module.proj.in_features, adapter.count_heads(module)))


def _make_spectrum(make: Callable[[int], Any], module: Any) -> Any:
    return check_mechanism("reparam", make(module.proj.in_features))


def _make_tokens(
    model: nn.Module, make: Callable[[int], nn.Module], position: Position, layers: str
) -> list[tuple[nn.Module, nn.Module, HookPoint]]:
    found = find_positions(model, position)
    if not all(found):
        raise ValueError(f"{type(model).__name__} has no place for tokens at position {position!r}")
    selected = [modules[i] for modules in found for i in select_layers(layers, len(modules))]
    if any(hasattr(module.get_submodule(point.target), "tokens") for module, point in selected):
        raise ValueError(f"position {position!r} has tokens already: detach them first")
    made = [
        (check_mechanism("tokens", make(read_dim(module, point))), module, point)
        for module, point in selected
    ]
    pads_tokens = any(find_host(module).pads_tokens for module in model.modules())
    norm_sees_no_mask = position == "norms" and pads_tokens
    for part, module, point in made:
        attention = None if point.attention is None else module.get_submodule(point.attention)
        is_causal = getattr(attention, "is_causal", False)
        if (norm_sees_no_mask or is_causal) and not isinstance(part, LayerScale):
            reason, leak = f"{find_import_path(module)} is causal", "future"
            if norm_sees_no_mask:
                reason = f"the norms of {type(model).__name__} see no mask"
                leak = "padding or future"
            raise ValueError(
                f"{reason}, so {type(part).__name__} would leak {leak} tokens: only LayerScale, "
                "which acts on each token alone, is allowed here"
            )
    return made


def _match_device_and_mode(part: nn.Module | None, module: nn.Module) -> Any:
    if part is None:
        return None
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return part.train(module.training).to(None if tensor is None else tensor.device)


def _update_configs(model: nn.Module) -> None:
    for host in {find_host(module) for module in model.modules() if adapter_for(module)}:
        host.update_config(model)
