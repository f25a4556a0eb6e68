"""Find the attention layers of a model, and select and check those that get a mechanism."""

import operator
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from attention_core.attention import SelfAttention
from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.generic import has_square_map, make_generic_adapter
from attention_core.hosts.hook_points import (
    OWN_CODE,
    find_attention_parts,
    find_host,
    find_host_class,
    find_import_path,
)

Layers = str | int | slice | Collection[int]
Where = str | type[nn.Module] | Callable[[nn.Module], bool]
_SLICE = re.compile(r"\s*(-?\d+)?(:(-?\d+)?){1,2}\s*")
_ATTENTION_NAME = re.compile(r"Attention|Attn|MHA")
_CROSS_ATTENTION_NAME = re.compile(r"Cross|Class|Pool|Output")  # no map, or none that is square
# what some classes of timm and transformers have between their map and its output projection
_BETWEEN = ("norm", "gate", "inner_attn_ln", "groupnorm", "gate_proj")
# wrappers that read the parameters of a model once, and so never see those of a mechanism
_WRAPPERS = ("torch.nn.parallel.distributed", "torch.distributed", "torch.jit")


def select_layers(layers: Layers, depth: int) -> Sequence[int]:
    """Return the indices of the selected ones of `depth` layers; see `attach`."""
    given: Any = layers
    if isinstance(layers, str | slice):
        given = range(depth)[_parse_slice(layers)]
    elif not hasattr(layers, "__iter__") or getattr(layers, "ndim", 1) == 0:
        given = [layers]
    if any(isinstance(i, bool) or not hasattr(i, "__index__") for i in given):
        raise TypeError(
            'layers must be a slice, such as ":", "1::2" or "6:" as text, an index, or a list or '
            f"range of indices, got {layers!r}"
        )
    indices = [operator.index(i) for i in given]
    if wrong := [i for i in indices if not -depth <= i < depth]:
        raise ValueError(
            f"layers {layers!r} names layer {wrong[0]}, and the model has {depth}, from 0 to "
            f"{depth - 1}; quote a slice in YAML, which reads 6:12 as a number"
        )
    indices = [i % depth for i in indices]
    if not indices:
        raise ValueError(f"layers {layers!r} names none of the {depth} layers")
    if len(set(indices)) < len(indices):
        raise ValueError(f"layers {layers!r} names a layer twice")
    return indices


def _parse_slice(layers: str | slice) -> slice:
    if isinstance(layers, str):
        if not _SLICE.fullmatch(layers):
            raise ValueError(
                'layers must be a Python slice as text, such as ":", "1::2" or "6:", got '
                f"{layers!r}; quote it in YAML"
            )
        layers = slice(*(int(part) if part.strip() else None for part in layers.split(":")))
    if layers.step == 0:
        raise ValueError(f"layers {layers!r} has a step of 0")
    return layers


def adapter_for(module: nn.Module) -> type[Filtered] | None:
    """Return the adapter of a module's class, or None for a class without one."""
    if isinstance(module, Filtered):
        return type(module)
    host_class: Any = type(module)
    adapter = find_host(module).find_adapter(host_class)
    return adapter or (make_generic_adapter(host_class) if has_square_map(module) else None)


def is_known_attention(module: nn.Module) -> bool:
    """Return True if `attach` finds a module without `where`, filtered already or not."""
    adapter = find_host(module).find_adapter(find_host_class(module))
    return adapter is not None or bool(has_square_map(module))


def self_attention_modules(
    model: nn.Module, where: Where | None = None
) -> list[tuple[Any, type[Filtered]]]:
    """Return the self-attention modules of a model with their adapters, encoder before decoder.

    A module that several layers share appears once. Cross-attention is left out. ValueError names
    the attention classes of the model if none of them is known or `where` names none.
    """
    if where is None:
        named = [(name, m, made) for name, m in model.named_modules() if (made := adapter_for(m))]
    else:
        named = _find_classes(model, where)
    inner = find_attention_parts(model)
    named = [entry for entry in named if entry[1] not in inner]
    found = [(m, made) for name, m, made in named if not find_host(m).is_cross_attention(name, m)]
    if found:
        return found
    known = next(((name, m) for name, m in model.named_modules() if adapter_for(m)), None)
    reason, other = "has no attention that attach knows", ""
    if named:
        reason = (
            f"has only attention that stays Plain, {_describe(*named[0][:2])}: "
            f"{find_host(named[0][1]).plain_reason}"
        )
    elif where is not None:
        text = repr(where) if isinstance(where, str) else f"of {getattr(where, '__name__', where)}"
        reason = f"has no module {text}"
        other = f"it has {_describe(*known)}, which attach finds without where" if known else ""
    if not other and not (named and not find_unknown_attention(model)):
        other = _describe_attention(model)
    raise ValueError("; ".join(filter(None, [f"{type(model).__name__} {reason}", other])))


def make_selector(where: Where) -> Callable[[nn.Module], bool]:
    """Return a function that is True for the modules that `where` names."""
    if not (isinstance(where, str) or callable(where)):
        raise TypeError(f"where must be a class, its name or a function of a module, got {where!r}")

    def is_named(module: nn.Module) -> bool:
        if isinstance(where, type):
            return issubclass(find_host_class(module), where)
        if not isinstance(where, str):
            return where(module)
        return f".{find_import_path(module)}".endswith(f".{OWN_CODE.sub('', where)}")

    return is_named


def _find_classes(model: nn.Module, where: Where) -> list[tuple[str, nn.Module, type[Filtered]]]:
    is_named = make_selector(where)
    named = [(name, module) for name, module in model.named_modules() if is_named(module)]
    chosen = {module for _, module in named}
    for name, module in named:
        inner = [part for part in module.modules() if part is not module]
        if held := next((part for part in inner if part in chosen), None):
            raise ValueError(
                f"where names {_describe(name, module)} and a part of it, "
                f"{find_import_path(held)}: one map would be filtered twice"
            )
    return [
        (name, m, adapter_for(m) or make_generic_adapter(find_host_class(m)))
        for name, m in named
        if has_square_map(m) is not False
    ]


def find_unknown_attention(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention modules of a model without an adapter, the first of each class."""
    adapted = (m for m in model.modules() if adapter_for(m) and has_square_map(m) is not False)
    known = {part for m in adapted for part in m.modules()}
    named = {
        name: module
        for name, module in model.named_modules()
        if module not in known
        and _ATTENTION_NAME.search(type(module).__name__)
        and not _CROSS_ATTENTION_NAME.search(type(module).__name__)
        and not any(child in known for child in module.modules())
    }
    around = {name[:i] for name in named for i, char in enumerate(name) if char == "."}
    classes = {type(module): name for name, module in reversed(named.items()) if name not in around}
    return {name: model.get_submodule(name) for name in sorted(classes.values())}


def warn_unsupported_attention(model: nn.Module) -> None:
    """Warn of attention classes in a model that have no adapter."""
    # a class that `where` named; `layers` may have left out some of its modules
    chosen = {find_import_path(m) for m in model.modules() if isinstance(m, Filtered)}
    names = {
        type(m).__name__
        for m in find_unknown_attention(model).values()
        if find_import_path(m) not in chosen or has_square_map(m) is False
    }
    if names:
        warnings.warn(
            f"{type(model).__name__} has attention that no filter supports, which stays as it is: "
            f"{', '.join(sorted(names))}",
            stacklevel=3,  # the caller of `attach`
        )


def _describe_attention(model: nn.Module) -> str:
    """Return what attention a refused model has, and the nearest way to filter it."""
    if any(isinstance(module, SelfAttention) for module in model.modules()):
        return "SelfAttention takes its mechanisms when it is made, by filter=, kernel= and tokens="
    found = find_unknown_attention(model)
    if not found:
        return "no other module is named as attention: if one has a map, pass where=, its class"
    listed = ", ".join(_describe(name, module) for name, module in list(found.items())[:3])
    for module in found.values():
        if has_square_map(module) is None:
            where = f"where={type(module).__name__!r}"
            return f"it has {listed}: {where} filters its map, if it applies one square map"
    return f"it has {listed}"


def _describe(name: str, module: nn.Module) -> str:
    return f"{find_import_path(module)} (module {name!r})" if name else find_import_path(module)


def find_wrapper(model: nn.Module, packages: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the path and the class of a module of packages that wrap models, None for none."""
    for name, module in model.named_modules():
        # FSDP changes the class of each module to one that derives from it too
        for base in type(module).__mro__:
            if base.__module__.startswith(packages):
                return name, base.__name__
    return None


def check_wrappers(model: nn.Module) -> None:
    """Raise ValueError for a model in a wrapper, which would ignore new parameters."""
    if found := find_wrapper(model, _WRAPPERS):
        raise ValueError(f"{found[1]} wraps the model already: attach first, then wrap")


def check_layers(selected: list[tuple[Any, type[Filtered]]]) -> None:
    """Raise ValueError for layers with a filter, and those that accelerate's hooks run or load."""
    for module, _ in selected:
        is_meta = any(weight.is_meta for weight in module.parameters())
        hooked = [part for part in module.modules() if "forward" in vars(part)]
        if module in hooked or (is_meta and hooked):
            raise ValueError(
                f"hooks replaced the forward of {find_import_path(module)} or of a part whose "
                "weights are offloaded, as accelerate does: attach, or load, without "
                "device_map, then call accelerate.dispatch_model(model, device_map)"
            )
        if isinstance(module, Filtered):
            if not all(isinstance(getattr(module, x), Plain | None) for x in module.slots):
                raise ValueError("a layer has a filter already: detach it, or give both at once")
        elif own := [name for name in ("filter", "kernel") if hasattr(module, name)]:
            raise ValueError(f"{find_import_path(module)} has its own {own[0]}: rename it")


def find_projections(
    model: nn.Module, module: nn.Module, adapter: type[Filtered]
) -> tuple[Any, Any, slice, str]:
    """Return what `EigenSpectrum.tie` takes for a layer; ValueError if no spectrum can be tied."""
    path = find_import_path(module)
    parents = [parent for parent in model.modules() if module in parent.children()]
    value: Any
    output: Any
    for (weight, projection), home in product(adapter.projections, [module, *parents]):
        holder, _, name = weight.rpartition(".")
        with suppress(AttributeError):
            value, output = module.get_submodule(holder), home.get_submodule(projection)
            break
    else:
        raise ValueError(
            f"{path} has no place for a reparameterisation: no weights of its values and output "
            "are known by name, as in ViT, DeiT, EVA-02, CaiT and Swin of timm, "
            "nn.MultiheadAttention, and BERT, ViT, CLIP and BART of transformers"
        )
    if parametrize.is_parametrized(output):
        raise ValueError("a layer has a reparameterised projection already: detach it first")
    if any(not isinstance(getattr(module, x, None), nn.Identity | None) for x in _BETWEEN):
        raise ValueError(f"{path} has a norm or a gate before its output: no spectrum fits it")
    weights = value._parameters.get(name), output._parameters.get("weight")
    if not all(w is not None and w.is_floating_point() for w in weights):
        raise ValueError(f"{path} has quantised or adapted projections: attach a spectrum first")
    (rows, *width), dim = weights[0].shape, output.in_features
    if [*width, *weights[1].shape] != [dim] * 3 or rows not in (dim, 3 * dim):
        raise ValueError(f"{path} has no square projections to reparameterise")
    return value, output, slice(rows - dim, rows), name
