"""Attach a mechanism to the attention of a finished model, and detach it again.

Attaching replaces the class of an attention module by its adapter (`hosts/<library>.py`), so that
parameters, their names and the optimizer's references to them stay.
"""

import inspect
import logging
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from attention_core.checks import check_choices, check_factories, check_mechanism, check_models
from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.hook_points import (
    HookPoint,
    Position,
    add_mask_checks,
    find_host,
    find_import_path,
    find_positions,
    insert_tokens,
    read_dim,
    remove_tokens,
)
from attention_core.hosts.restoration import restore_on_error
from attention_core.hosts.selection import (
    Layers,
    Where,
    adapter_for,
    check_projections,
    check_unfiltered,
    check_wrappers,
    select_layers,
    self_attention_modules,
    warn_unsupported_attention,
)
from attention_core.kernels.common import connect_layers
from attention_core.reparam import find_spectrum
from attention_core.tokens.layerscale import LayerScale

logger = logging.getLogger(__name__)
# a misspelt argument: "layer" and "filter" are found, options of mechanisms are not
_SIMILARITY = 0.7


def attach(
    model: nn.Module,
    make_filter: Callable[[int], nn.Module] = Plain,
    layers: Layers = ":",
    *,
    kernel: Callable[[int, int], nn.Module] | None = None,
    tokens: Callable[[int], nn.Module] | None = None,
    position: Position = "attention",
    reparam: Callable[[int], Any] | None = None,
    where: Where | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> nn.Module:
    """Attach a mechanism to the self-attention layers of a model, in place.

    `make_filter(num_heads)` makes the filter of one layer, `kernel(dim, num_heads)` replaces its
    softmax, `reparam(dim)` makes the spectrum of its value and output projections, and
    `tokens(dim)` makes a function of tokens. `position` says where this is called: after
    `attention` (in Swin on the map of a stage), after attention inside each `window` of Swin,
    after both `branches` of a layer, before all `norms`, or on the `residual` sum of attention
    before its norm (BERT). It receives the mask of valid tokens.

    `layers` is a Python slice as text, a slice, an index or a sequence of indices of the
    self-attention layers in model order, encoder before decoder (of the norms if `position` is
    `norms`). Cross-attention stays Plain. `where` names the layers' class (by its name, its import
    path, itself, or a function that is True for its modules): it may be any class that calls
    `torch.nn.functional.scaled_dot_product_attention` once with a square map.

    Parameters keep their names; new ones are `<module>.filter.*`, `.kernel.*` and `.tokens.*`. An
    optimizer that exists already gets a group of the new ones, without weight decay, by
    `optimizer`; give it before a scheduler is made. A layer with a Plain filter may get another
    one later. A line in the log of `attention_core` says what was attached, a warning lists
    attention classes without an adapter. `save_pretrained` records what is attached to the whole
    model.

    Raises ValueError if the model has no known attention, if `layers` selects nothing, if `where`
    names none, if a layer has a filter already, if the model has no place for the kernel or at the
    position, if `tokens` would leak future tokens (causal attention) or padding (norms in models
    of transformers and speechbrain, which see no mask), and for a model that is wrapped
    (DistributedDataParallel, FSDP, TorchScript, hooks that replace a module's `forward`), since
    the wrapper would ignore the mechanism; TypeError if a factory makes another kind of mechanism.
    After any exception the model is as it was.
    """
    check_models("attach", model=model)
    factories = {"kernel": kernel, "tokens": tokens, "reparam": reparam}
    _check_options(options, make_filter=make_filter, **factories)
    check_factories("attach", make_filter=make_filter, **factories)
    check_choices("attach", position=(position, Position))
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise TypeError(f"attach.optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    check_wrappers(model)
    changes_attention = make_filter is not Plain or kernel is not None or reparam is not None
    # norms may get tokens in a model without known attention
    only_norms = tokens is not None and position == "norms" and not changes_attention
    found = [] if only_norms else self_attention_modules(model, where)
    selected = [found[i] for i in select_layers(layers, len(found))] if found else []
    check_unfiltered(selected)
    spectra = [] if reparam is None else _make_spectra(reparam, selected)
    filters = [check_mechanism("filter", make_filter(a.count_heads(m))) for m, a in selected]
    kernels = [_make_kernel(kernel, module, adapter) for module, adapter in selected]
    inserted = [] if tokens is None else _make_tokens(model, tokens, position, layers)
    with restore_on_error(model, [m.qkv.weight for m, _ in selected] if spectra else []):
        for (module, adapter), *parts in zip(selected, filters, kernels, strict=True):
            module.__class__ = adapter
            for slot, part in zip(adapter.slots, parts, strict=False):
                setattr(module, slot, _match_device_and_mode(part, module))
            module.on_attach()
        connect_layers(kernels)
        for part, module, point in inserted:
            insert_tokens(_match_device_and_mode(part, module), module, point, position)
        if inserted:
            add_mask_checks(model, inserted[0][0], position)
        for spectrum, (module, _) in zip(spectra, selected, strict=bool(spectra)):
            dim = module.proj.in_features
            spectrum.tie(module.qkv, module.proj, slice(2 * dim, 3 * dim))
        _update_configs(model)
        parts = [*filters, *kernels, *spectra, *(part for part, *_ in inserted)]
        for part in filter(None, parts):
            # what a part holds fixed, which methods that freeze a model do not tell
            part.trained_names = [name for name, w in part.named_parameters() if w.requires_grad]
        new = list({id(w): w for part in parts if part for w in part.parameters()}.values())
        trained = [weight for weight in new if weight.requires_grad]
        if optimizer is not None and trained:
            decay = {"weight_decay": 0.0} if "weight_decay" in optimizer.defaults else {}
            optimizer.add_param_group({"params": trained, **decay})
    if found:
        warn_unsupported_attention(model)
    _log_attached(model, parts, selected, len(found), new)
    return model


def _check_options(options: dict[str, Any], **factories: Any) -> None:
    """Raise TypeError for an argument that `attach` does not have, and name where it belongs."""
    for name in options:
        if close := get_close_matches(name, inspect.signature(attach).parameters, 1, _SIMILARITY):
            raise TypeError(f"attach has no argument {name!r}: it is {close[0]!r}")
        made = next((x for x in factories.values() if x not in (None, Plain)), None)
        while isinstance(made, partial):
            made = made.func
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise TypeError(
            f"attach has no argument {name!r}: give it to the mechanism, by "
            f"functools.partial({getattr(made, '__name__', 'GFSA')}, {given})"
        )


def _log_attached(
    model: nn.Module,
    parts: list[Any],
    selected: list[tuple[Any, type[Filtered]]],
    num_layers: int,
    new: list[nn.Parameter],
) -> None:
    names = {type(part).__name__ for part in parts if not isinstance(part, Plain | None)}
    paths = sorted({find_import_path(module) for module, _ in selected})
    where = f"{len(selected)} of {num_layers} attention layers ({', '.join(paths)})"
    logger.info(
        "attached %s to %s of %s: %d new parameters, %d of them trained",
        ", ".join(sorted(names)) or "Plain",
        where if selected else "the norms",
        type(model).__name__,
        sum(weight.numel() for weight in new),
        sum(weight.numel() for weight in new if weight.requires_grad),
    )


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that the mechanisms of a model train, by their names in it.

    Methods that freeze a model, such as LoRA, freeze these too: `requires_grad_()` trains them
    again. An optimizer should not decay them: their identity is not zero.

    >>> from attention_core import GFSA, attach
    >>> layer = attach(nn.TransformerEncoderLayer(8, 2), GFSA)
    >>> list(trainable_parameters(layer.requires_grad_(False)))
    ['self_attn.filter.wK']
    """
    trained: set[int] = set()
    modules: list[Any] = list(model.modules())
    for module in modules:
        for name in getattr(module, "trained_names", []):
            trained.add(id(module.get_parameter(name)))
        if find_spectrum(module) is not None:
            trained.add(id(module.parametrizations.weight.original))
    return {name: weight for name, weight in model.named_parameters() if id(weight) in trained}


def detach(model: nn.Module) -> nn.Module:
    """Remove every mechanism from a model, in place: the host's classes, its parameters.

    A reparameterised projection keeps the weight that it last had.
    """
    check_models("detach", model=model)
    remove_tokens(model)
    filtered: list[Any] = [module for module in model.modules() if isinstance(module, Filtered)]
    for module in filtered:
        if module.takes_reparam and (spectrum := find_spectrum(module.proj)) is not None:
            spectrum.untie()
        module.on_detach()
        for slot in module.slots:
            delattr(module, slot)
        module.__class__ = module.host_class
    _update_configs(model)
    return model


def _make_spectra(make: Callable[[int], Any], selected: list[tuple[Any, Any]]) -> list[Any]:
    check_projections(selected)
    return [check_mechanism("reparam", make(module.proj.in_features)) for module, _ in selected]


def _make_kernel(
    make: Callable[[int, int], nn.Module] | None, module: Any, adapter: type[Filtered]
) -> nn.Module | None:
    if make is None:
        return None
    if "kernel" not in adapter.slots:
        raise ValueError(f"{find_import_path(module)} has no place for a kernel")
    return check_mechanism("kernel", make(module.proj.in_features, adapter.count_heads(module)))


def _make_tokens(
    model: nn.Module, make: Callable[[int], nn.Module], position: Position, layers: Layers
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
    part.train(module.training).to(None if tensor is None else tensor.device)
    if tensor is not None and tensor.is_floating_point():
        for layer in part.modules():
            # torch's layers compute in one dtype; coefficients convert themselves
            if type(layer).__module__.startswith("torch.nn"):
                layer.to(tensor.dtype)
    return part


def _update_configs(model: nn.Module) -> None:
    for host in {find_host(module) for module in model.modules() if adapter_for(module)}:
        host.update_config(model)
