"""Checks of what `attach` is given: a model and its layers, and names of arguments."""

from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.hook_points import find_import_path

# wrappers that read the parameters of a model once, and so never see those of a mechanism
_WRAPPERS = ("torch.nn.parallel.distributed", "torch.distributed", "torch.jit")
_ARGUMENTS = ["make_filter", "layers", "kernel", "tokens", "position", "reparam", "where",
              "optimizer"]  # fmt: skip
# of a misspelt argument: "layer" and "filter" are found, options of mechanisms are not
_SIMILARITY = 0.7


def refuse_options(options: dict[str, Any], **factories: Any) -> None:
    """Refuse arguments that `attach` does not have, and name the place where they belong."""
    for name in options:
        if close := get_close_matches(name, _ARGUMENTS, 1, _SIMILARITY):
            raise TypeError(f"attach has no argument {name!r}: it is {close[0]!r}")
    if options:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        made = [make for make in factories.values() if make is not None and make is not Plain]
        while made and isinstance(made[0], partial):
            made[0] = made[0].func
        mechanism = getattr(made[0], "__name__", "GFSA") if made else "GFSA"
        raise TypeError(
            f"attach has no argument {next(iter(options))!r}: give it to the mechanism, by "
            f"functools.partial({mechanism}, {given})"
        )


def check_wrappers(model: nn.Module) -> None:
    """Refuse a model that is wrapped, since the wrapper would ignore new parameters."""
    for module in model.modules():
        # FSDP changes the class of each module to one that derives from it too
        for base in type(module).__mro__:
            if base.__module__.startswith(_WRAPPERS):
                raise ValueError(
                    f"{base.__name__} wraps the model already and would ignore the new parameters: "
                    "attach first, then wrap"
                )


def check_unfiltered(selected: list[tuple[Any, type[Filtered]]]) -> None:
    """Refuse layers that have a filter, and layers that accelerate's hooks run or load."""
    for module, _ in selected:
        if "forward" in vars(module):
            raise ValueError(
                f"the forward of {find_import_path(module)} was replaced on the module itself, as "
                "accelerate's hooks do, and would bypass the filter: attach first"
            )
        if _is_offloaded(module):
            raise ValueError(
                f"the weights of {find_import_path(module)} are offloaded, and hooks of accelerate "
                "would not load those of a mechanism: attach first"
            )
        if isinstance(module, Filtered) and (
            not isinstance(module.filter, Plain) or getattr(module, "kernel", None) is not None
        ):
            raise ValueError("a layer has a filter already: detach it first")


def _is_offloaded(module: nn.Module) -> bool:
    is_meta = any(weight.is_meta for weight in module.parameters())
    return is_meta and any("forward" in vars(part) for part in module.modules())


def check_projections(selected: list[tuple[Any, type[Filtered]]]) -> None:
    """Refuse layers whose projections no spectrum can make."""
    for module, adapter in selected:
        if not adapter.takes_reparam:
            raise ValueError(f"{find_import_path(module)} has no place for a reparameterisation")
        weights = (module.qkv.weight, module.proj.weight)
        if not all(isinstance(w, Tensor) and w.is_floating_point() for w in weights):
            raise ValueError(
                f"{find_import_path(module)} has quantised projections, which no spectrum can draw "
                "anew: attach first, then quantise"
            )
        if parametrize.is_parametrized(module.proj):
            raise ValueError("a layer has a reparameterised projection already: detach it first")
        dim = module.proj.in_features
        if (module.qkv.out_features, module.proj.out_features) != (3 * dim, dim):
            raise ValueError(
                f"{find_import_path(module)} has no square projections to reparameterise"
            )
