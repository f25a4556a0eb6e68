"""Save and load filters and functions of tokens in the checkpoints of transformers.

`save_pretrained` writes their weights with the others, and `config.attention_core` describes them:
`{"layers": [0, 1], "filter": {"class_path": ..., "init_args": {...}}}`, or a list of such groups if
layers differ. For a function of tokens, `"tokens"` and `"position"` take the place of `"filter"`.
Without `init_args` the arguments are unknown, and the part cannot be made again.
"""

import inspect
import json
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import cached_file

from attention_core.adapter import Filtered
from attention_core.attach import attach
from attention_core.filters.plain import Plain
from attention_core.hook_points import Position, find_positions
from attention_core.selection import self_attention_modules

FIELD = "attention_core"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_KWARGS = ("revision", "cache_dir", "subfolder", "token", "local_files_only", "force_download")


def load(kind: Any, path: str, **kwargs: Any) -> nn.Module:
    """Load a model with the filters and functions of tokens that it was saved with.

    `kwargs` are those of `kind.from_pretrained`; `path` is a folder or a name on the hub.
    transformers drops weights that its class does not have, and leaves those uninitialized that
    the file lacks: so the stock model is loaded first, then the filters are attached and filled.

    Raises ValueError if the config describes no filter, or one without its arguments, and if the
    weights in the files do not match the described filters.
    """
    model: Any = kind.from_pretrained(path, **kwargs)
    described = getattr(model.config, FIELD, None)
    if not described:
        raise ValueError(f"the config of {path} describes no filter: use {kind.__name__} itself")
    groups = described if isinstance(described, list) else [described]
    # tokens first: a layer with a filter takes nothing else
    for group in sorted(groups, key=lambda group: "filter" in group):
        _attach_group(model, group, path)
    saved = _read_weights(path, {k: v for k, v in kwargs.items() if k in HUB_KWARGS})
    _load_weights(model, saved, path)
    return model


def _attach_group(model: nn.Module, group: dict[str, Any], path: str) -> None:
    part = group["filter"] if "filter" in group else group["tokens"]
    name = part["class_path"]
    if "init_args" not in part:
        raise ValueError(
            f"{path} was saved with {name}, whose layers or arguments its config could not "
            "describe: attach it by hand"
        )
    make: Any = partial(_import_class(name), **part["init_args"])
    slots = {"make_filter": make}
    if "tokens" in group:
        slots = {"tokens": make, "position": group["position"]}
    for i in group["layers"]:
        attach(model, layers=f"{i}:{i + 1}", **slots)


def write_config(model: nn.Module) -> None:
    """Describe filters and functions of tokens in the config of each pretrained model in a model.

    The description has no arguments for a part that stores an argument of its `__init__` neither
    under an attribute of the same name nor in a dict `init_args`, or one that is not JSON.
    """
    if not isinstance(model, PreTrainedModel):
        for child in model.children():
            write_config(child)
        return
    has_filter = any(isinstance(module, Filtered) for module in model.modules())
    described = [
        (i, json.dumps({"filter": _describe_part(module.filter)}))
        for i, (module, _) in enumerate(self_attention_modules(model) if has_filter else [])
        if isinstance(module, Filtered) and not isinstance(module.filter, Plain)
    ]
    positions: Any = {getattr(module, "tokens_position", None) for module in model.modules()}
    for position in sorted(positions - {None}):
        described += _describe_position(model, position)
    described.sort(key=itemgetter(1))
    groups = [
        {"layers": [i for i, _ in group]} | json.loads(text)
        for text, group in groupby(described, itemgetter(1))
    ]
    if groups:
        setattr(model.config, FIELD, groups[0] if len(groups) == 1 else groups)
    elif hasattr(model.config, FIELD):
        delattr(model.config, FIELD)


def _describe_position(model: nn.Module, position: Position) -> list[tuple[int, str]]:
    """Return the layers that have a function of tokens at a position, with its description."""
    tables: list[dict[int, Any]] = []
    for found in find_positions(model, position):
        targets: Any = [module.get_submodule(point.target) for module, point in found]
        positions = [getattr(target, "tokens_position", None) for target in targets]
        chosen = [i for i, other in enumerate(positions) if other == position]
        tables.append({i: _describe_part(targets[i].tokens) for i in chosen})
    merged = {i: part for table in tables for i, part in table.items()}
    if any(table != tables[0] for table in tables):  # no slice of layers selects these
        merged = {i: {"class_path": part["class_path"]} for i, part in merged.items()}
    return [(i, json.dumps({"tokens": part, "position": position})) for i, part in merged.items()]


def _describe_part(part: nn.Module) -> dict[str, Any]:
    names = list(inspect.signature(type(part).__init__).parameters)[2:]
    values = {name: getattr(part, name, inspect.Parameter.empty) for name in names}
    args = {k: v for k, v in values.items() if not isinstance(v, Tensor | nn.Module)}
    args |= getattr(part, "init_args", {})
    part_class = type(part)
    package = import_module(part_class.__module__.partition(".")[0])
    is_public = getattr(package, part_class.__name__, None) is part_class
    home = package.__name__ if is_public else part_class.__module__
    path = {"class_path": f"{home}.{part_class.__qualname__}"}
    try:
        return path | {"init_args": json.loads(json.dumps(args))}
    except TypeError:  # an argument is not stored, or is not JSON
        return path


def _import_class(path: str) -> Any:
    home, _, name = path.rpartition(".")
    part_class = getattr(import_module(home), name, None)
    if not (isinstance(part_class, type) and issubclass(part_class, nn.Module)):
        raise ValueError(f"{path} is no filter or function of tokens")
    return part_class


def _read_weights(path: str, hub_kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Read the weights of filters and functions of tokens, which no model of transformers has."""
    whole = cached_file(path, WEIGHTS, _raise_exceptions_for_missing_entries=False, **hub_kwargs)
    files = [whole]
    if whole is None:
        index: Any = cached_file(path, INDEX, **hub_kwargs)
        with open(index, encoding="utf-8") as text:
            shards = json.load(text)["weight_map"]
        names = {shard for key, shard in shards.items() if _is_attached(key)}
        files = [cached_file(path, name, **hub_kwargs) for name in sorted(names)]
    found: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            keys = [key for key in tensors.keys() if _is_attached(key)]  # noqa: SIM118
            found |= {key: tensors.get_tensor(key) for key in keys}
    return found


def _is_attached(key: str) -> bool:
    return bool({"filter", "tokens"} & set(key.split(".")))


def _load_weights(model: Any, saved: dict[str, Tensor], path: str) -> None:
    for name, weight in model.state_dict().items():
        if not _is_attached(name):
            continue
        key = next((key for key in _list_saved_names(model, name, weight) if key in saved), None)
        if key is None:
            raise ValueError(f"{path} has no weights for {name}")
        weight.copy_(saved.pop(key))
    if saved:
        raise ValueError(f"{path} has weights that its config does not describe: {min(saved)}")


def _list_saved_names(model: Any, name: str, weight: Tensor) -> list[str]:
    """Return the names of a weight in a file of a model with a head, or of its base model."""
    (written,) = revert_weight_conversion(model, {name: weight})
    prefix = f"{model.base_model_prefix}."
    return [
        form for key in (name, written) for form in (key, key.removeprefix(prefix), prefix + key)
    ]
