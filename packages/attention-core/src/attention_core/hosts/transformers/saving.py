"""Save and load filters and functions of tokens in the checkpoints of transformers.

`save_pretrained` writes their weights with the others, and `config.attention_core` describes them:
a group of layers as in `hosts/saving.py`, or a list of such groups if layers differ.
"""

import json
from collections.abc import Collection
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from attention_core.hosts.saving import (
    attach_groups,
    convert_errors,
    describe_mechanisms,
    fill_tensor,
)

try:
    from transformers.core_model_loading import revert_weight_conversion
except ModuleNotFoundError:  # before transformers 5, which renames no weight

    def revert_weight_conversion(model: Any, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights under their own names."""
        return state_dict


FIELD = "attention_core"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_KWARGS = ("revision", "cache_dir", "subfolder", "token", "local_files_only", "force_download")


def load(kind: Any, path: str, trust: Collection[str] | str = (), **kwargs: Any) -> nn.Module:
    """Load a model with the filters and functions of tokens that it was saved with.

    `kwargs` are those of `kind.from_pretrained`; `path` is a folder or a name on the hub. `trust`
    names the classes, as `package.Class`, that may be imported besides those of attention_core.
    transformers leaves weights uninitialized that a file lacks, so the stock model comes first.
    """
    model: Any = kind.from_pretrained(path, **kwargs)
    described = getattr(model.config, FIELD, None)
    if not described:
        raise ValueError(f"the config of {path} describes no filter: use {kind.__name__} itself")
    with convert_errors(str(path)):
        groups = described if isinstance(described, list) else [described]
        attach_groups(model, groups, str(path), trust)
        saved = _read_weights(path, {k: v for k, v in kwargs.items() if k in HUB_KWARGS})
        _load_weights(model, saved, path)
    return model


def write_config(model: nn.Module) -> None:
    """Describe in the config of each pretrained model in a model what is attached to it."""
    if not isinstance(model, PreTrainedModel):
        for child in model.children():
            write_config(child)
        return
    if groups := describe_mechanisms(model):
        setattr(model.config, FIELD, groups[0] if len(groups) == 1 else groups)
    elif hasattr(model.config, FIELD):
        delattr(model.config, FIELD)


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
        fill_tensor(weight, saved.pop(key), name, path)
    if saved:
        raise ValueError(f"{path} has weights that its config does not describe: {min(saved)}")


def _list_saved_names(model: Any, name: str, weight: Tensor) -> list[str]:
    """Return the names of a weight in a file of a model with a head, or of its base model."""
    (written,) = revert_weight_conversion(model, {name: weight})
    prefix = f"{model.base_model_prefix}."
    return [
        form for key in (name, written) for form in (key, key.removeprefix(prefix), prefix + key)
    ]
