"""Hook points: where a forward hook calls a function of tokens inside another library's model."""

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize

from attention_core.mechanism import find_allowed_tokens
from attention_core.tokens.layerscale import LayerScale

Position = Literal["attention", "window", "branches", "norms", "residual"]
# the libraries with a module `hosts/<library>.py`, which is imported only when a model needs it
HOSTS = ("peft", "speechbrain", "timm", "torch", "transformers")
PADDING = "key_padding_mask"  # True where a token is padding; the other masks mark valid tokens
PAIRS = "attn_mask"  # timm's, of pairs of tokens
MASK_ARGS = ("attention_mask", "mask", PADDING, PAIRS)
# attributes of the hooked modules
_STATE = ("tokens_position", "tokens_hooks", "tokens_see_mask")
_CALL = threading.local()  # the mask of the attention that runs: threads may share a model
# the package of a folder with its own code, whose name and hash differ between copies
OWN_CODE = re.compile(r"^transformers_modules\.(.*\.)?(?=\w+\.\w+$)")
ONLY_LAYERSCALE = "only LayerScale, which acts on each token alone, is allowed"


class HookPoint(NamedTuple):
    """One place inside a host's module where tokens pass."""

    dim: str  # the path of their number of channels, or of a shape that ends with it
    target: str = ""  # the submodule to hook
    before: bool = False  # at its input
    attention: str | None = None  # the submodule that receives the mask, if there is one


def has_cross_attention_name(name: str, module: nn.Module) -> bool:
    """Return True if the last two names of a module's path name a cross-attention."""
    known = ("encoder_attn", "EncDecAttention")
    return any("cross" in part or part in known for part in name.split(".")[-2:])


@dataclass(frozen=True, eq=False)
class HostLibrary:
    """A library's adapters and hook points; `hosts/<library>.py` defines it as `HOST`."""

    hook_points: Mapping[str, Mapping[str, HookPoint]]  # by the table and the class's import path
    find_adapter: Callable[[Any], type[Any] | None] = lambda host_class: None
    is_cross_attention: Callable[[str, nn.Module], bool] = has_cross_attention_name
    pads_tokens: bool = False  # models receive padding that their norms cannot see
    update_config: Callable[[nn.Module], None] = lambda model: None
    plain_reason: str = "its queries and its keys are of different tokens, so its map has no powers"


def find_host_class(module: nn.Module) -> Any:
    """Return the class of a module, or the host's own class if an adapter replaced it."""
    return getattr(type(module), "host_class", type(module))


def find_import_path(module: nn.Module) -> str:
    """Return the import path of the host's class of a module."""
    return find_class_path(find_host_class(module))


def find_class_path(host_class: Any) -> str:
    """Return the import path of a class, or of that which torch parametrised."""
    if host_class.__module__ == parametrize.__name__:
        host_class = host_class.__base__
    return OWN_CODE.sub("", f"{host_class.__module__}.{host_class.__qualname__}")


def find_host(module: nn.Module) -> HostLibrary:
    """Return the library that a module's class comes from; torch for all that are not known."""
    library = find_host_class(module).__module__.partition(".")[0]
    return import_module(f"attention_core.hosts.{library if library in HOSTS else 'torch'}").HOST


def find_attention_parts(model: nn.Module) -> set[nn.Module]:
    """Return the modules inside attention, tokens, and the attention of pooling heads."""
    parts: set[nn.Module] = set()
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "tokens_position"):
            parts.update(module.tokens.modules())
        if find_host(module).find_adapter(find_host_class(module)) is not None:
            parts.update(part for part in module.modules() if part is not module)
        if "Pool" in type(module).__name__:
            parts.update(module.children())
    return parts


def find_positions(model: nn.Module, position: Position) -> list[list[tuple[nn.Module, HookPoint]]]:
    """Return the modules of a position, no cross-attention, with their hook points, by table."""
    inner = find_attention_parts(model)
    hosts = [
        (module, host)
        for name, module in model.named_modules()
        if module not in inner
        and not (host := find_host(module)).is_cross_attention(name, module)
        and name.rpartition(".")[-1] != "fc_norm"
    ]
    found: list[list[tuple[nn.Module, HookPoint]]] = []
    # `layers` counts the modules of each table apart
    for table in ("attention", "mlp") if position == "branches" else (position,):
        points = ((m, h.hook_points.get(table, {}).get(find_import_path(m))) for m, h in hosts)
        found.append([(module, point) for module, point in points if point is not None])
    return found


def insert_tokens(part: nn.Module, module: nn.Module, point: HookPoint, position: Position) -> None:
    """Call `part` at a hook point, with the mask (B, N) of valid tokens if the host has one."""
    target: Any = module.get_submodule(point.target)
    target.tokens, target.tokens_position = part, position
    if point.before:
        hook = target.register_forward_pre_hook(_replace_input)
    else:
        hook = target.register_forward_hook(_replace_output)
    target.tokens_hooks = [*getattr(target, "tokens_hooks", []), hook]
    if point.attention is not None and not isinstance(part, LayerScale):
        attention = module.get_submodule(point.attention)
        args = list(inspect.signature(find_host_class(attention).forward).parameters)[1:]
        if not {*MASK_ARGS} & {*args}:  # an older timm, without masks
            return
        target.tokens_see_mask = True
        record = partial(_record_mask, args, type(part).__name__, position)
        # not the model's first mask: a recomputed (checkpointed) layer records its own again
        target.tokens_hooks += [attention.register_forward_pre_hook(record, with_kwargs=True)]


def add_mask_checks(model: nn.Module, tokens: nn.Module, position: Position) -> None:
    """Let timm's attention raise ValueError for a mask, which tokens at a position cannot see."""
    if position == "attention" or isinstance(tokens, LayerScale):
        return
    modules: list[Any] = list(model.modules())
    for module in modules:
        host_class = find_host_class(module)
        args = list(inspect.signature(host_class.forward).parameters)[1:]
        if host_class.__module__.startswith("timm") and {"x", PAIRS} <= {*args}:
            check = partial(_record_mask, args, type(tokens).__name__, position)
            hook = module.register_forward_pre_hook(check, with_kwargs=True)
            module.tokens_hooks = [*getattr(module, "tokens_hooks", []), hook]


def remove_tokens(model: nn.Module) -> None:
    """Remove every function of tokens from a model."""
    for module in list(model.modules()):
        for handle in getattr(module, "tokens_hooks", []):
            handle.remove()
        # not `tokens` of a SelfAttention, which is its own
        for name in (*_STATE, "tokens") if hasattr(module, "tokens_position") else _STATE:
            if hasattr(module, name):
                delattr(module, name)


def _record_mask(
    names: list[str], tokens: str, position: str, module: Any, args: Any, kwargs: Any
) -> None:
    given = dict(zip(names, args, strict=False)) | kwargs
    name = next(name for name in MASK_ARGS if name in names)
    valid = mask = given.get(name)
    if name == PAIRS and given.get("is_causal"):
        raise ValueError(f"{tokens} would leak future tokens: {ONLY_LAYERSCALE} in a causal call")
    sees_pairs = name == PAIRS and position == "attention"
    if given.get(PAIRS) is not None and not sees_pairs:
        raise ValueError(
            f"{tokens} at position {position!r} does not see {PAIRS}, and would mix what it hides: "
            f"{ONLY_LAYERSCALE}"
        )
    if mask is not None and name == PADDING:
        valid = ~mask.bool().reshape(-1, mask.shape[-1])
    elif mask is not None:
        is_padding = mask.ndim == 2 and name != PAIRS
        valid = mask.bool() if is_padding else find_allowed_tokens(mask, tokens)
    _CALL.valid = valid


def _replace_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_call_tokens(module, inputs[0]), *inputs[1:])


def _replace_output(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return _call_tokens(module, output)


def _call_tokens(module: Any, x: Tensor) -> Tensor:
    if x.ndim < 3:
        raise ValueError(
            f"{type(module.tokens).__name__} needs tokens (batch, tokens, channels), got "
            f"{tuple(x.shape)} at {find_import_path(module)}: a norm after pooling has none"
        )
    valid = _CALL.valid if hasattr(module, "tokens_see_mask") else None
    if valid is None:
        return module.tokens(x.flatten(1, -2)).reshape(x.shape)  # (B, H, W, D) has H W tokens
    return module.tokens(x, valid[:, -x.shape[1] :].expand(x.shape[0], -1))
