"""Find what is attached to a model: its parts, their parameters, and a description for JSON.

A description is a list of groups of layers: `{"layers": [0, 1], "filter": {"class_path": ...,
"init_args": {...}}}`, with `"kernel"` and `"reparam"` beside the filter if there are any. A group
whose class `attach` finds by `where=` alone has its import path as `"where"`. For a function of
tokens, `"tokens"` and `"position"` take the place of the filter. A part without `init_args` has
arguments that are unknown, and cannot be made again.
"""

import json
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from typing import Any

from torch import nn

from attention_core.arguments import find_arguments
from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.attach import attach
from attention_core.hosts.hook_points import Position, find_import_path, find_positions
from attention_core.hosts.selection import is_known_attention, self_attention_modules
from attention_core.reparam import find_spectrum

__all__ = ["trainable_parameters"]

SLOTS = ("filter", "kernel", "reparam")
# the arguments that the host gives: the number of heads, of channels, or both
_NUM_HOST_ARGS = {"filter": 1, "kernel": 2, "reparam": 1, "tokens": 1}


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


def find_layers(model: nn.Module, where: str | None) -> list[Any]:
    """Return the layers that `attach` counts with this `where`, filtered already or not."""
    found = [module for module, _ in self_attention_modules(model, where)]
    return [module for module in found if where is not None or is_known_attention(module)]


def find_parts(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a layer by their slot; none if it is not filtered or only Plain."""
    if not isinstance(layer, Filtered):
        return {}
    module: Any = layer
    parts = {
        "filter": module.filter,
        "kernel": getattr(module, "kernel", None),
        "reparam": find_spectrum(module.proj) if module.takes_reparam else None,
    }
    found = {slot: part for slot, part in parts.items() if part is not None}
    return {} if len(found) == 1 and isinstance(module.filter, Plain) else found


def describe_mechanisms(model: nn.Module) -> list[dict[str, Any]]:
    """Describe all that is attached to a model, as a list of groups of layers."""
    filtered = [module for module in model.modules() if find_parts(module)]
    wheres = {None if is_known_attention(m) else find_import_path(m) for m in filtered}
    described = []
    for where in sorted(wheres, key=str):
        for i, module in enumerate(find_layers(model, where)):
            if parts := find_parts(module):
                group = {slot: describe_part(part, slot) for slot, part in parts.items()}
                described.append((i, json.dumps(group | ({"where": where} if where else {}))))
    positions: Any = {getattr(module, "tokens_position", None) for module in model.modules()}
    for position in sorted(positions - {None}):
        described += _describe_position(model, position)
    described.sort(key=itemgetter(1))
    return [
        {"layers": [i for i, _ in group]} | json.loads(text)
        for text, group in groupby(described, itemgetter(1))
    ]


def find_tokens(model: nn.Module, position: Position) -> list[dict[int, Any]]:
    """Return the functions of tokens at a position by their layers, for each table of it."""
    tables = []
    for found in find_positions(model, position):
        targets: Any = [module.get_submodule(point.target) for module, point in found]
        positions = [getattr(target, "tokens_position", None) for target in targets]
        chosen = [i for i, other in enumerate(positions) if other == position]
        tables.append({i: targets[i].tokens for i in chosen})
    return tables


def _describe_position(model: nn.Module, position: Position) -> list[tuple[int, str]]:
    """Return the layers that have a function of tokens at a position, with its description."""
    tables = [
        {i: describe_part(part, "tokens") for i, part in table.items()}
        for table in find_tokens(model, position)
    ]
    merged = {i: part for table in tables for i, part in table.items()}
    if any(table != tables[0] for table in tables):  # no slice of layers selects these
        merged = {i: {"class_path": part["class_path"]} for i, part in merged.items()}
    return [(i, json.dumps({"tokens": part, "position": position})) for i, part in merged.items()]


def describe_part(part: nn.Module, slot: str) -> dict[str, Any]:
    """Return the class and the arguments of a part.

    It has no arguments for a part that stores an argument of its `__init__` neither under an
    attribute of the same name nor in a dict `init_args`, or one that is not JSON.
    """
    args = find_arguments(part, skipped=_NUM_HOST_ARGS[slot])
    part_class = type(part)
    package = import_module(part_class.__module__.partition(".")[0])
    is_public = getattr(package, part_class.__name__, None) is part_class
    home = package.__name__ if is_public else part_class.__module__
    path = {"class_path": f"{home}.{part_class.__qualname__}"}
    try:
        return path | {"init_args": json.loads(json.dumps(args))}
    except TypeError:  # an argument is not stored, or is not JSON
        return path


def attach_group(model: nn.Module, group: dict[str, Any], source: str) -> None:
    """Attach a described group of layers; `source` is where the description comes from.

    Raises ValueError for a part without its arguments, and for a class that is no module.
    """
    made = {}
    for slot in (*SLOTS, "tokens"):
        if slot in group:
            made["make_filter" if slot == "filter" else slot] = _make_factory(group[slot], source)
    if "position" in group:
        made["position"] = group["position"]
    attach(model, layers=group["layers"], where=group.get("where"), **made)


def _make_factory(part: dict[str, Any], source: str) -> Any:
    name = part["class_path"]
    if "init_args" not in part:
        raise ValueError(
            f"{source} was saved with {name}, whose layers or arguments it could not describe: "
            "attach it by hand"
        )
    home, _, class_name = name.rpartition(".")
    part_class = getattr(import_module(home), class_name, None)
    if not (isinstance(part_class, type) and issubclass(part_class, nn.Module)):
        raise ValueError(f"{name} is no filter or function of tokens")
    return partial(part_class, **part["init_args"])
