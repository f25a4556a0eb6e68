"""Save and load what is attached in the checkpoints of transformers.

`save_pretrained` writes its weights with the others, and `config.attention_core` describes it:
a group of layers as in `hosts/saving.py`, or a list of such groups if layers differ. `auto_map`
names code in the folder that calls `load`, for the stock `from_pretrained`.
"""

import json
import re
import warnings
from collections.abc import Collection, Iterator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from attention_core.hosts.saving import (
    FIELD,
    attach_groups,
    convert_errors,
    describe_mechanisms,
    fill_tensor,
)
from attention_core.reparam import EigenSpectrum

try:
    from transformers.core_model_loading import revert_weight_conversion
except ModuleNotFoundError:  # before transformers 5, which renames no weight

    def revert_weight_conversion(model: Any, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights under their own names."""
        return state_dict


WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
# names of what is attached; the last are those of an EigenSpectrum
ATTACHED = r"(^|\.)(filter|kernel|tokens)\.|\.parametrizations\.weight\.(original|0\.eps)$"
MODULE = "attention_core_models"
IMPORTS = """# AutoModel.from_pretrained(folder, trust_remote_code=True) loads what is attached, too
from functools import partial

import transformers
from attention_core.hosts.transformers import load
"""
CLASS = """

class {0}(transformers.{0}):
    from_pretrained = partial(load, transformers.{0})
"""
_save_config, _save_model = PretrainedConfig.save_pretrained, PreTrainedModel.save_pretrained
_initialize = PreTrainedModel._initialize_weights
HUB_KWARGS = ("revision", "cache_dir", "subfolder", "token", "local_files_only", "force_download")


def load(kind: Any, path: str, trust: Collection[str] | str = (), **kwargs: Any) -> Any:
    """Load a model with the mechanisms that it was saved with, and with an adapter of PEFT.

    `kind` is a class of transformers, or SentenceTransformer; `path` is a folder or a name on the
    hub, of a model or of an adapter. `kwargs` are those of `kind.from_pretrained`. `trust` names
    the classes, as `package.Class`, that may be imported besides those of attention_core.
    transformers leaves weights uninitialized that a file lacks, so the stock model comes first.
    """
    if given := [name for name in ("variant", "output_loading_info") if kwargs.get(name)]:
        raise ValueError(f"load takes no {given[0]}: leave it out; rename variants to {WEIGHTS}")
    hub = {k: v for k, v in kwargs.items() if k in HUB_KWARGS}
    adapter = _read_json(path, ADAPTER, hub)
    base = adapter.get("base_model_name_or_path", path)
    own = ("revision", "subfolder") if adapter else ()  # its place, not that of the base model
    kwargs = {k: v for k, v in kwargs.items() if k not in own}
    base_hub = {k: v for k, v in hub.items() if k in kwargs}
    # transformers asks each module in a model which weights it need not report
    with patch.object(nn.Module, "_keys_to_ignore_on_load_unexpected", [ATTACHED], create=True):
        model: Any = getattr(kind, "from_pretrained", kind)(base, **kwargs)
    trust_own_code(model)
    parts = [*find_pretrained(model)]
    if len(parts) > 1 or (adapter and parts != [model]):
        remedy = "attach to its base, then call load_adapter" if adapter else "use save_mechanism"
        raise ValueError(f"load reads no router or adapter of {kind.__name__}: {remedy}")
    restored = [part for part in parts if getattr(part.config, FIELD, None)]
    for part in restored:
        if describe_mechanisms(part):  # by the code in the folder
            continue
        with convert_errors(str(base)):
            described = part.config.attention_core
            groups = described if isinstance(described, list) else [described]
            is_drawn = any("reparam" in group for group in groups)  # which draws values anew
            stock = {k: w.clone() for k, w in part.state_dict().items() if is_drawn}
            attach_groups(part, groups, str(base), trust)
            part.load_state_dict(stock, strict=False)
            _load_weights(part, part.config.name_or_path or base, base_hub)
    if not restored and not adapter.get(FIELD):
        if (whole := _read_json(base, "config.json", base_hub)).get(FIELD):
            owner = " or ".join(whole.get("architectures") or ["a larger model"])
            raise ValueError(f"{path} describes {owner}: load that, and take its {kind.__name__}")
        raise ValueError(f"the config of {path} describes no filter: use {kind.__name__} itself")
    if adapter.get(FIELD) and not restored:
        with convert_errors(str(path)):
            attach_groups(model, adapter[FIELD], str(path), trust)
    if adapter:
        peft = import_module("attention_core.hosts.peft")  # so that PEFT reads what is described
        model = peft.PeftModel.from_pretrained(model, path, **hub)
    return model


def trust_own_code(model: Any) -> None:
    """Let the Trainer of sentence-transformers load checkpoints by the code that is saved there."""
    if hasattr(model, "trust_remote_code"):
        model.trust_remote_code = True


def find_pretrained(model: nn.Module) -> Iterator[Any]:
    """Yield the outermost models of transformers in a model."""
    if isinstance(model, PreTrainedModel):
        yield model
    else:
        for child in model.children():
            yield from find_pretrained(child)


def _map_auto_classes(config_class: Any) -> dict[str, str]:
    """Return the class in the folder's code for each of the library's automatic classes."""
    names = [name for name in dir(transformers) if name.startswith("AutoModel")]
    tables = {name: getattr(getattr(transformers, name), "_model_mapping", {}) for name in names}
    found = {name: table.get(config_class, None) for name, table in tables.items()}
    # a tuple of classes: transformers chooses by the architecture in the config
    kinds = {name: kind for name, kind in found.items() if isinstance(kind, type)}
    return {name: f"{MODULE}.{kind.__name__}" for name, kind in kinds.items()}


def _list_remote_classes(config: Any) -> list[str]:
    paths = (getattr(config, "auto_map", None) or {}).values()
    return sorted({path.rpartition(".")[2] for path in paths if str(path).startswith(MODULE)})


@wraps(_save_config)
def save_config(config: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
    """Save a config as transformers does; where it describes a filter, with code that loads it."""
    if hasattr(config, FIELD) and not getattr(config, "auto_map", None):
        config.auto_map = _map_auto_classes(type(config))
    _save_config(config, save_directory, *args, **kwargs)
    if classes := _list_remote_classes(config):
        code = IMPORTS + "".join(CLASS.format(name) for name in classes)
        (Path(save_directory) / f"{MODULE}.py").write_text(code, encoding="utf-8")


@wraps(_save_model)
def save_model(model: Any, *args: Any, **kwargs: Any) -> None:
    """Save a model as transformers does, with what is attached to it described in its config."""
    # when it is saved: what is attached to a part alone, or to a model with the same config
    if groups := describe_mechanisms(model):
        setattr(model.config, FIELD, groups[0] if len(groups) == 1 else groups)
        if len(args) < 3:  # safetensors refuses what layers share
            state = (kwargs.get("state_dict") or model.state_dict()).items()
            kwargs["state_dict"] = {k: w.clone() if re.search(ATTACHED, k) else w for k, w in state}
    elif hasattr(model.config, FIELD):
        delattr(model.config, FIELD)
        if _list_remote_classes(model.config):
            del model.config.auto_map
    _save_model(model, *args, **kwargs)
    if groups and vars(model.config).get("auto_map") and not _list_remote_classes(model.config):
        warnings.warn(
            "the model's own code leaves out what is attached: load it by hosts.transformers.load",
            stacklevel=2,
        )


@wraps(_initialize)
def initialize_weights(model: Any, module: Any, *args: Any) -> None:
    """Start weights that no file has: attached ones as they were made, others as transformers."""
    start = vars(module).pop("attached_start", None)
    if start is None or getattr(module, "_is_hf_initialized", False):
        return _initialize(model, module, *args)
    if isinstance(module, EigenSpectrum) and not hasattr(module.psi, "_is_hf_initialized"):
        raise ValueError("no file has psi: attach reparam= to what from_pretrained returns")
    for name, weight in module.state_dict(keep_vars=True).items():
        if not hasattr(weight, "_is_hf_initialized"):
            weight.copy_(start[name])


PretrainedConfig.save_pretrained, PreTrainedModel.save_pretrained = save_config, save_model
PreTrainedModel._initialize_weights = initialize_weights


def _read_json(path: str, name: str, hub: dict[str, Any]) -> dict[str, Any]:
    file = cached_file(path, name, _raise_exceptions_for_missing_entries=False, **hub)
    return {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))


def _load_weights(model: Any, path: str, hub: dict[str, Any]) -> None:
    """Fill what is attached with its weights in the files of a model."""
    names = {*_read_json(path, INDEX, hub).get("weight_map", {}).values()} or {WEIGHTS}
    saved, base = dict[str, Tensor](), f"{model.base_model_prefix}."
    for name in sorted(names):
        with safe_open(cached_file(path, name, **hub), "pt") as tensors:
            keys = [key for key in tensors.keys() if re.search(ATTACHED, key)]  # noqa: SIM118
            saved |= {key: tensors.get_tensor(key) for key in keys}
    for name, weight in model.state_dict().items():
        if not re.search(ATTACHED, name):
            continue
        (written,) = revert_weight_conversion(model, {name: weight})
        # the file is that of a model with a head, or of its base model
        forms = [x for k in (name, written) for x in (k, k.removeprefix(base), base + k)]
        key = next((key for key in forms if key in saved), None)
        if key is None:
            raise ValueError(f"{path} has no weights for {name}")
        fill_tensor(weight, saved.pop(key), name, path)
    if saved:
        raise ValueError(f"{path} has weights that its config does not describe: {min(saved)}")
