"""Attach a mechanism to the attention of a finished model, and detach it again.

Attaching replaces the class of an attention module by its adapter (`hosts/<library>.py`), so that
parameters, their names and the optimizer's references to them stay.
"""

import logging
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import nn

from attention_core import filters, kernels, reparam, tokens
from attention_core.checks import check_choices, check_factories, check_mechanism, check_models
from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered, watch_peft
from attention_core.hosts.hook_points import (
    HOSTS,
    ONLY_LAYERSCALE,
    HookPoint,
    Position,
    add_mask_checks,
    find_host,
    find_import_path,
    find_positions,
    insert_tokens,
    remove_tokens,
)
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import (
    Layers,
    Where,
    check_layers,
    check_wrappers,
    find_projections,
    is_known_attention,
    select_layers,
    self_attention_modules,
    warn_unsupported_attention,
)
from attention_core.kernels.common import connect_layers
from attention_core.reparam import find_spectrum
from attention_core.tokens.layerscale import LayerScale

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)
Make = Callable[[int], nn.Module]
_MECHANISMS = {
    name.lower(): made
    for home in (filters, kernels, tokens, reparam)
    for name, made in vars(home).items()
    if isinstance(made, type) and issubclass(made, nn.Module)
    if made.__module__.startswith(home.__name__)  # not what the module imports
}


def attach(
    model: Model,
    filter: Make | str = Plain,
    layers: Layers = ":",
    *,
    kernel: Callable[[int, int], nn.Module] | str | None = None,
    tokens: Make | str | None = None,
    position: Position = "attention",
    reparam: Make | str | None = None,
    where: Where | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    make_filter: Make | str | None = None,
) -> Model:
    """Attach a mechanism to the self-attention layers of a model, in place.

    Parameters keep their names; new ones are `<module>.filter.*`, `.kernel.*` and `.tokens.*`. A
    layer with a Plain filter may get another one later. A line in the log of `attention_core` says
    what was attached, a warning lists attention classes without an adapter. After any exception
    the model is as it was.

    Args:
        model: a model that no wrapper holds yet (DistributedDataParallel, FSDP, TorchScript).
        filter: makes the filter of a layer from its number of heads. This factory, and those
            below, may be the name of a class: "gfsa".
        layers: a Python slice as text, a slice, an index or several indices of the
            self-attention layers in model order, encoder before decoder (of the norms if
            `position` is "norms"). Cross-attention stays Plain.
        kernel: makes what replaces the softmax, from the number of channels and of heads.
        tokens: makes a function of tokens from their number of channels. It gets the mask of valid
            tokens.
        position: says where tokens are changed: after "attention" (in Swin on the map of a
            stage), after attention inside each "window" of Swin, after both "branches" of a layer,
            before all "norms", or on the "residual" sum of attention before its norm (BERT).
        reparam: makes the spectrum of the value and output projections from their width.
        where: names the layers' class (by its name, its import path, itself, or a function that is
            True for its modules): any class that applies one square attention map.
        optimizer: an optimizer that exists already, which gets a group of the new parameters,
            without weight decay; give it before a scheduler is made.
        make_filter: another name of `filter`.

    Raises:
        ValueError: for a model without known attention or in a wrapper, for `layers` or a `where`
            that selects nothing, for a place that is taken or missing, and for `tokens` that would
            leak future tokens or padding; a warning where "norms" are of unknown attention.
        TypeError: for a factory that makes another kind of mechanism.
    """
    check_models("attach", model=model)
    filter = make_filter or filter
    makers = _find_makers(filter=filter, kernel=kernel, tokens=tokens, reparam=reparam)
    check_choices("attach", position=(position, Position))
    check_wrappers(model)
    changes_attention = makers["filter"] is not Plain or kernel is not None or reparam is not None
    # norms may get tokens in a model without known attention
    only_norms = tokens is not None and position == "norms" and not changes_attention
    found = [] if only_norms else self_attention_modules(model, where)
    selected = [found[i] for i in select_layers(layers, len(found))] if found else []
    check_layers(selected)
    projections = [find_projections(model, *layer) for layer in selected if reparam]
    spectra = [check_mechanism("reparam", makers["reparam"](p[1].in_features)) for p in projections]
    with torch.device("cpu"):  # transformers makes a model that it loads on meta
        made = [_make_parts(makers, *layer) for layer in selected]
        inserted = [] if tokens is None else _make_tokens(model, makers["tokens"], position, layers)
    weights = [value.get_parameter(name) for value, _, _, name in projections]
    with restore_model(model, weights, only_on_error=True):
        for (module, adapter), parts in zip(selected, made, strict=True):
            module.__class__ = adapter
            for slot, part in zip(adapter.slots, parts, strict=False):
                setattr(module, slot, _match_device_and_mode(part, module))
            module.on_attach()
        connect_layers(parts[1] for parts in made)
        for part, module, point in inserted:
            insert_tokens(_match_device_and_mode(part, module), module, point, position)
        if inserted:
            add_mask_checks(model, inserted[0][0], position)
        for spectrum, place, (module, _) in zip(spectra, projections, selected, strict=False):
            module.spectrum = (_match_device_and_mode(spectrum, module).tie(*place),)
        new = [*(part for part in chain(*made) if part), *spectra, *(part for part, *_ in inserted)]
        for part in new:  # methods that freeze a model do not tell what a part holds fixed
            part.trained_names = [name for name, w in part.named_parameters() if w.requires_grad]
        _update_configs(model)
        watch_peft()
        _add_to_optimizer(model, optimizer)
        if found:
            warn_unsupported_attention(model)
    _log_attached(model, new, selected, len(found))
    return model


def _find_makers(**given: Any) -> dict[str, Any]:
    """Return the factory of each slot; a text, as "gfsa", names a class."""
    makers = dict(given)
    for slot, text in given.items():
        if isinstance(text, str):
            name = text.removeprefix("attention_core.").replace("_", "").lower()
            if name not in _MECHANISMS:
                known = ", ".join(sorted(_MECHANISMS))
                raise ValueError(f"{slot} is {text!r}, which is none of {known}")
            makers[slot] = _MECHANISMS[name]
    check_factories("attach", **makers)
    return makers


def _make_parts(
    makers: dict[str, Any], module: Any, adapter: type[Filtered]
) -> tuple[nn.Module, nn.Module | None]:
    """Make the filter and the kernel of a layer."""
    num_heads = adapter.count_heads(module)
    filter = check_mechanism("filter", makers["filter"](num_heads))
    if (make := makers["kernel"]) is None:
        return filter, None
    if reason := adapter.refuse_kernel(module):
        raise ValueError(
            f"{find_import_path(module)} has no place for a kernel: {reason}; ViT, DeiT and EVA-02 "
            "of timm, nn.MultiheadAttention, and BERT and other encoders of transformers have one"
        )
    return filter, check_mechanism("kernel", make(adapter.find_dim(module), num_heads))


def _add_to_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Add what the mechanisms of a model train to an optimizer, as a group without decay."""
    if optimizer is None:
        return
    known = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    new = {k: w for k, w in trainable_parameters(model).items() if id(w) not in known}
    if new:
        weights = new.items() if "param_names" in optimizer.param_groups[0] else new.values()
        decay = {"weight_decay": 0.0} if "weight_decay" in optimizer.defaults else {}
        optimizer.add_param_group({"params": [*weights], **decay})


def _log_attached(
    model: nn.Module, parts: list[Any], selected: list[tuple[Any, Any]], num_layers: int
) -> None:
    names = {type(part).__name__ for part in parts if not isinstance(part, Plain)}
    paths = sorted({find_import_path(module) for module, _ in selected})
    where = f"{len(selected)} of {num_layers} attention layers ({', '.join(paths)})"
    psis = [part.psi for part in parts if isinstance(part, reparam.EigenSpectrum)]
    weights = {id(weight): weight for weight in chain(psis, *(p.parameters() for p in parts))}
    trained = {id(weight) for part in parts for weight in list_trained_weights(part).values()}
    logger.info(
        "attached %s to %s of %s: %d new parameters, %d of them trained",
        ", ".join(sorted(names)) or "Plain",
        where if selected else "the norms",
        type(model).__name__,
        sum(weight.numel() for weight in weights.values()),
        sum(weights[key].numel() for key in trained.union(map(id, psis))),
    )


def list_trained_weights(part: nn.Module) -> dict[str, nn.Parameter]:
    """Return what a part trains: of a weight that torch computes from another, that other."""
    own, added = getattr(part, "trained_names", ()), r"parametrizations\.|\.original\d*$|_orig$"
    return {k: w for k, w in part.named_parameters() if k in own or re.sub(added, "", k) in own}


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that `attach` gave a model and that are trained, by their names.

    A method that freezes a model freezes these too: `requires_grad_()` trains them again. An
    optimizer should not decay them: their identity is not zero.

    >>> from attention_core import GFSA, attach
    >>> layer = attach(nn.TransformerEncoderLayer(8, 2), GFSA)
    >>> list(trainable_parameters(layer.requires_grad_(False)))
    ['self_attn.filter.wK']
    """
    trained: set[int] = set()
    modules: list[Any] = list(model.modules())
    for module in modules:
        trained.update(map(id, list_trained_weights(module).values()))
        if find_spectrum(module) is not None:
            trained.add(id(module.parametrizations.weight.original))
    return {
        name: weight
        for name, weight in model.named_parameters()
        if id(weight) in trained and "original_module" not in name.split(".")  # PEFT's, unused
    }


def detach(model: Model) -> Model:
    """Remove every mechanism from a model, in place: the host's classes, its parameters.

    A reparameterised projection keeps the weight that it last had, as a parameter that no optimizer
    has. Raises ValueError where something else changed the class of a layer since.
    """
    check_models("detach", model=model)
    filtered: list[Any] = [module for module in model.modules() if isinstance(module, Filtered)]
    if changed := [type(m).__name__ for m in filtered if "host_class" not in vars(type(m))]:
        raise ValueError(f"{changed[0]} was made after attach, as by a parametrization: undo that")
    remove_tokens(model)
    for module in filtered:
        for spectrum in vars(module).pop("spectrum", ()):
            spectrum.untie()
        module.on_detach()
        for slot in module.slots:
            delattr(module, slot)
        module.__class__ = module.host_class
    _update_configs(model)
    return model


def _make_tokens(
    model: nn.Module, make: Callable[[int], nn.Module], position: Position, layers: Layers
) -> list[tuple[nn.Module, nn.Module, HookPoint]]:
    found = find_positions(model, position)
    if not all(found):
        raise ValueError(f"{type(model).__name__} has no place for tokens at position {position!r}")
    selected = [modules[i] for modules in found for i in select_layers(layers, len(modules))]
    if any(hasattr(module.get_submodule(point.target), "tokens") for module, point in selected):
        raise ValueError(f"position {position!r} has tokens already: detach them first")
    made = []
    for module, point in selected:
        dim = attrgetter(point.dim)(module)
        part = check_mechanism("tokens", make(dim if isinstance(dim, int) else dim[-1]))
        made.append((part, module, point))
    pads_tokens = any(
        find_host(module).pads_tokens or isinstance(module, nn.MultiheadAttention)
        for module in model.modules()
    )
    norm_sees_no_mask = position == "norms" and pads_tokens
    for part, module, point in made:
        attention = None if point.attention is None else module.get_submodule(point.attention)
        is_causal = getattr(attention, "is_causal", False)
        if (norm_sees_no_mask or is_causal) and not isinstance(part, LayerScale):
            reason, leak = f"{find_import_path(module)} is causal", "future"
            if norm_sees_no_mask:
                reason, leak = f"norms of {type(model).__name__} see no mask", "padding or future"
            name = type(part).__name__
            raise ValueError(f"{reason}, so {name} would leak {leak} tokens: {ONLY_LAYERSCALE}")
    is_known = pads_tokens or any(map(is_known_attention, model.modules()))
    if position == "norms" and not is_known and not isinstance(part, LayerScale):
        warnings.warn(
            f"the norms of {type(model).__name__} see no mask: if its attention is causal or "
            f"padded, {type(part).__name__} mixes future tokens or padding",
            stacklevel=3,  # the caller of `attach`
        )
    return made


def _match_device_and_mode(part: Any, module: nn.Module) -> Any:
    if part is None:
        return None
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.is_meta for tensor in tensors):  # loses values
        part.attached_start = {name: t.clone() for name, t in part.state_dict().items()}
    part.train(module.training).to(tensors[0].device if tensors else None)
    # not that of weights of int8 or float8, beside which activations are of another
    dtype = next((t.dtype for t in tensors if t.is_floating_point() and t.itemsize > 1), None)
    for layer in part.modules():
        # torch's layers compute in one dtype; coefficients convert themselves
        if type(layer).__module__.startswith("torch.nn"):
            layer.to(dtype)
    return part


def _update_configs(model: nn.Module) -> None:
    # a model of one's own may be of a library's base class, and saves as that does
    bases = {base.__module__.partition(".")[0] for m in model.modules() for base in type(m).__mro__}
    for library in bases.intersection(HOSTS):
        import_module(f"attention_core.hosts.{library}").HOST.update_config(model)
