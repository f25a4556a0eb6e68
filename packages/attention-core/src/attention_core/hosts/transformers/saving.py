"""Filters beside a model's own weights in a checkpoint of transformers, and back.

`save_pretrained` writes the filters' weights with the others, and `config.attention_core` says
what they are: `{"layers": [0, 1], "filter": {"class_path": ..., "init_args": {...}}}`, a list of
these where layers differ.
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

FIELD = "attention_core"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OF_THE_HUB = ("revision", "cache_dir", "subfolder", "token", "local_files_only", "force_download")


def load(kind: Any, path: str, **kwargs: Any) -> nn.Module:
    """A model with the filters that it was saved with: `from_pretrained`, then the filters.

    transformers leaves a weight that its class does not make, or that the file lacks,
    uninitialised or out: the stock model is loaded first, the filters are attached and then
    filled. `kwargs` are those of `kind.from_pretrained`; `path` is a folder or a name of the hub.

    Raises ValueError where the config describes no filter, and where the described filters and
    the weights in the files differ.

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
    for group in described if isinstance(described, list) else [described]:
        make, init_args = _class(group["filter"]["class_path"]), group["filter"]["init_args"]
        for i in group["layers"]:
            attach(model, partial(make, **init_args), f"{i}:{i + 1}")
    _fill(model, _saved(path, {k: v for k, v in kwargs.items() if k in OF_THE_HUB}), path)
    return model


def describe(model: nn.Module) -> None:
    """Write into the config of each pretrained model inside a model what filters it has.

    A filter that keeps an argument of its `__init__` under no attribute of the same name cannot
    be described, and neither can one with arguments that are no JSON.

    Source: https://huggingface.co/docs/transformers/main_classes/configuration

    >>> describe(nn.Linear(2, 2))
    """
    if not isinstance(model, PreTrainedModel):
        for child in model.children():
            describe(child)
        return
    filtered = any(isinstance(module, Filtered) for module in model.modules())
    found = enumerate(attentions(model) if filtered else [])
    made = [(i, _description(m.filter)) for i, m in found if isinstance(m, Filtered)]
    known = [(i, text) for i, text in made if text is not None]
    groups = [
        {"layers": [i for i, _ in group], "filter": json.loads(text)}
        for text, group in groupby(sorted(known, key=lambda pair: pair[1]), lambda pair: pair[1])
    ]
    if groups:
        setattr(model.config, FIELD, groups[0] if len(groups) == 1 else groups)
    elif hasattr(model.config, FIELD):
        delattr(model.config, FIELD)


def _description(filter: nn.Module) -> str | None:
    if isinstance(filter, Plain):
        return None
    names = [name for name in inspect.signature(type(filter).__init__).parameters][2:]
    held = {name: getattr(filter, name, inspect.Parameter.empty) for name in names}
    args = {name: value for name, value in held.items() if not _is_weight(value)}
    try:
        return json.dumps({"class_path": _path(type(filter)), "init_args": args})
    except TypeError:  # an argument that is not kept, or is no JSON
        return None


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
        raise ValueError(f"{path} is no filter")
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
    filters = [(n, m.filter) for n, m in model.named_modules() if isinstance(m, Filtered)]
    ours = {f"{n}.filter.{k}": v for n, f in filters for k, v in f.state_dict().items()}
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
