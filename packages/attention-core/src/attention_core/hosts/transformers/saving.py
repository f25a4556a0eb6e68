"""Filters and tokens beside a model's own weights in a checkpoint of transformers, and back.

`save_pretrained` writes their weights with the others, and `config.attention_core` says what they
are: `{"layers": [0, 1], "filter": {"class_path": ..., "init_args": {...}}}`, a list of these where
layers differ; a function of tokens is `"tokens"` beside its `"position"`. Without `init_args` it is
known to have been there, and cannot be made again.
"""

import inspect
import json
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import cached_file

from attention_core.adapters import Filtered, attentions
from attention_core.attach import attach
from attention_core.filters.plain import Plain
from attention_core.hook_points import Position, located

FIELD = "attention_core"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OF_THE_HUB = ("revision", "cache_dir", "subfolder", "token", "local_files_only", "force_download")


def load(kind: Any, path: str, **kwargs: Any) -> nn.Module:
    """A model with the filters and tokens that it was saved with, put into `from_pretrained`.

    transformers leaves a weight that its class does not make, or that the file lacks,
    uninitialised or out: the stock model is loaded first, the filters are attached and then
    filled. `kwargs` are those of `kind.from_pretrained`; `path` is a folder or a name of the hub.

    Raises ValueError where the config describes no filter, where it names one without its
    arguments, and where the described filters and the weights in the files differ.

    Source: https://huggingface.co/docs/transformers/main_classes/model (from_pretrained)

    >>> from transformers import BertModel
    >>> load(BertModel, "no/such/folder", local_files_only=True)
    Traceback (most recent call last):
    OSError: ...
    """
    model: Any = kind.from_pretrained(path, **kwargs)
    described = getattr(model.config, FIELD, None)
    if not described:
        raise ValueError(f"the config of {path} describes no filter: use {kind.__name__} itself")
    groups = described if isinstance(described, list) else [described]
    # tokens first: a layer that has a filter is given nothing more
    for group in sorted(groups, key=lambda group: "filter" in group):
        _attach(model, group, path)
    _fill(model, _saved(path, {k: v for k, v in kwargs.items() if k in OF_THE_HUB}), path)
    return model


def _attach(model: nn.Module, group: dict[str, Any], path: str) -> None:
    part = group["filter"] if "filter" in group else group["tokens"]
    name = part["class_path"]
    if "init_args" not in part:
        what = f"{name}, whose places or arguments its config could not describe"
        raise ValueError(f"{path} was saved with {what}: attach it by hand")
    make = partial(_class(name), **part["init_args"])
    for i in group["layers"]:
        if "filter" in group:
            attach(model, make, f"{i}:{i + 1}")
        else:
            attach(model, tokens=make, position=group["position"], layers=f"{i}:{i + 1}")


def describe(model: nn.Module) -> None:
    """Write into the config of each pretrained model inside a model what filters and tokens it has.

    One that keeps an argument of its `__init__` under no attribute of the same name, nor in a dict
    `init_args`, is described without arguments, and so is one with arguments that are no JSON.

    Source: https://huggingface.co/docs/transformers/main_classes/configuration

    >>> describe(nn.Linear(2, 2))
    """
    if not isinstance(model, PreTrainedModel):
        for child in model.children():
            describe(child)
        return
    filtered = any(isinstance(module, Filtered) for module in model.modules())
    found = enumerate(attentions(model) if filtered else [])
    made = [
        (i, json.dumps({"filter": _description(m.filter)}))
        for i, m in found
        if isinstance(m, Filtered) and not isinstance(m.filter, Plain)
    ]
    for position in sorted({m.tokens_position for m in _seated(model).values()}):
        made += _at(model, position)
    groups = [
        {"layers": [i for i, _ in group]} | json.loads(text)
        for text, group in groupby(sorted(made, key=lambda pair: pair[1]), lambda pair: pair[1])
    ]
    if groups:
        setattr(model.config, FIELD, groups[0] if len(groups) == 1 else groups)
    elif hasattr(model.config, FIELD):
        delattr(model.config, FIELD)


def _seated(model: nn.Module) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if hasattr(m, "tokens_position")}


def _at(model: nn.Module, position: Position) -> list[tuple[int, str]]:
    """The layers at a position that have tokens, and what these are."""
    kinds: list[dict[int, Any]] = []
    for kind in located(model, position):
        passed: Any = [module.get_submodule(place.at) for module, place in kind]
        here = [
            (i, m.tokens)
            for i, m in enumerate(passed)
            if getattr(m, "tokens_position", 0) == position
        ]
        kinds.append({i: _description(tokens) for i, tokens in here})
    merged = {i: made for kind in kinds for i, made in kind.items()}
    if any(kind != kinds[0] for kind in kinds):  # no slice of layers says it
        merged = {i: {"class_path": made["class_path"]} for i, made in merged.items()}
    return [(i, json.dumps({"tokens": made, "position": position})) for i, made in merged.items()]


def _description(part: nn.Module) -> dict[str, Any]:
    names = [name for name in inspect.signature(type(part).__init__).parameters][2:]
    held = {name: getattr(part, name, inspect.Parameter.empty) for name in names}
    args = {name: value for name, value in held.items() if not _is_weight(value)}
    args |= getattr(part, "init_args", {})
    path = {"class_path": _path(type(part))}
    try:
        return path | {"init_args": json.loads(json.dumps(args))}
    except TypeError:  # an argument that is not kept, or is no JSON
        return path


def _is_weight(value: Any) -> bool:
    return isinstance(value, Tensor | nn.Module)


def _path(kind: type) -> str:
    public = import_module(kind.__module__.partition(".")[0])
    home = (
        public if getattr(public, kind.__name__, None) is kind else import_module(kind.__module__)
    )
    return f"{home.__name__}.{kind.__qualname__}"


def _class(path: str) -> Any:
    home, _, name = path.rpartition(".")
    kind = getattr(import_module(home), name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{path} is no filter or function of tokens")
    return kind


def _saved(path: str, hub: dict[str, Any]) -> dict[str, Tensor]:
    """What the files hold that no model of transformers has: weights of filters and of tokens."""
    whole = cached_file(path, WEIGHTS, _raise_exceptions_for_missing_entries=False, **hub)
    if whole is None:
        index: Any = cached_file(path, INDEX, **hub)
        with open(index, encoding="utf-8") as text:
            shards = json.load(text)["weight_map"]
        names = {shard for key, shard in shards.items() if _is_ours(key)}
        files = [cached_file(path, name, **hub) for name in sorted(names)]
    else:
        files = [whole]
    found: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            keys = [key for key in tensors.keys() if _is_ours(key)]  # noqa: SIM118
            found |= {key: tensors.get_tensor(key) for key in keys}
    return found


def _is_ours(key: str) -> bool:
    return bool({"filter", "tokens"} & set(key.split(".")))


def _fill(model: Any, saved: dict[str, Tensor], path: str) -> None:
    filtered = [(n, m) for n, m in model.named_modules() if isinstance(m, Filtered)]
    parts = {f"{n}.filter": m.filter for n, m in filtered}
    parts |= {f"{n}.tokens": m.tokens for n, m in _seated(model).items()}
    ours = {f"{n}.{k}": v for n, part in parts.items() for k, v in part.state_dict().items()}
    for name, weight in ours.items():
        key = next((key for key in _names(model, name, weight) if key in saved), None)
        if key is None:
            raise ValueError(f"{path} has no weights for {name}")
        weight.copy_(saved.pop(key))
    if saved:
        raise ValueError(f"{path} has weights that its config does not describe: {min(saved)}")


def _names(model: Any, name: str, weight: Tensor) -> list[str]:
    """What a weight may be called in a file, of a head's model or of the base's alone."""
    (written,) = revert_weight_conversion(model, {name: weight})
    prefix = f"{model.base_model_prefix}."
    return [
        form for key in (name, written) for form in (key, key.removeprefix(prefix), prefix + key)
    ]
