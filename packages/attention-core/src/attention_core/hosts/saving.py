"""Save what is attached to a model in a folder of its own, and attach it to another model.

`mechanism.json` describes the classes, their arguments and their layers; `mechanism.safetensors`
has their weights, a few KB. Names count layers, so that a body can take what its task model had.
"""

import hashlib
import json
import os
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.checks import check_models
from attention_core.hosts.mechanisms import (
    SLOTS,
    attach_group,
    describe_mechanisms,
    find_layers,
    find_parts,
    find_tokens,
)
from attention_core.hosts.restoration import restore_on_error

__all__ = ["load_mechanism", "save_mechanism"]

DESCRIPTION, WEIGHTS = "mechanism.json", "mechanism.safetensors"


def save_mechanism(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write what is attached to a model, its weights and its layers, without the model's own.

    An EigenSpectrum writes its value projections too, which it draws and training moves.

    Raises ValueError if nothing is attached, and for a part whose arguments are unknown;
    ModuleNotFoundError without safetensors.
    """
    check_models("save_mechanism", model=model)
    groups = describe_mechanisms(model)
    if not groups:
        raise ValueError(f"{type(model).__name__} has no mechanism: attach one first")
    for part in chain.from_iterable(group.values() for group in groups):
        if isinstance(part, dict) and "init_args" not in part:
            raise ValueError(
                f"{part['class_path']} has arguments that no file can describe, or differs between "
                "layers: store each argument under an attribute of its name"
            )
    states = {key: t.detach().cpu().contiguous() for key, t in _list_tensors(model, groups).items()}
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    # clones: shared weights appear under every layer
    weights = _import_safetensors().save({key: t.clone() for key, t in states.items()})
    described = {
        "model": type(model).__name__,
        "weights": hashlib.sha256(weights).hexdigest(),
        "groups": groups,
    }
    _replace_file(path / WEIGHTS, weights)
    _replace_file(path / DESCRIPTION, (json.dumps(described, indent=2) + "\n").encode())


def load_mechanism(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Attach to a model what `save_mechanism` wrote, in place, with its weights.

    Returns the model. After any exception it is as it was.

    Raises ValueError if the folder has no such files or they do not belong together, if a layer,
    a class or a weight does not fit the model, and if a layer has a mechanism already.

    >>> import tempfile
    >>> from attention_core import GFSA, attach
    >>> layer = nn.TransformerEncoderLayer(8, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_mechanism(attach(layer, GFSA), folder)
    ...     other = load_mechanism(nn.TransformerEncoderLayer(8, 2), folder)
    >>> type(other.self_attn.filter).__name__
    'GFSA'
    """
    check_models("load_mechanism", model=model)
    groups, weights = _read_files(Path(folder))
    spectra = any("reparam" in group for group in groups)
    rewritten = [m.qkv.weight for m in _find_projected(model)] if spectra else []
    with restore_on_error(model, rewritten):
        # tokens first: a layer with a filter takes nothing else; classes that `where` names last:
        # `attach` counts them once they are filtered
        for group in sorted(groups, key=lambda group: ("filter" in group, "where" in group)):
            attach_group(model, group, str(folder))
        with torch.no_grad():
            _fill_tensors(_list_tensors(model, groups), weights, str(folder))
    return model


def _find_projected(model: nn.Module) -> list[Any]:
    return [module for module in find_layers(model, None) if hasattr(module, "qkv")]


def _list_tensors(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the weights of the described parts, by group, slot, layer and their own name."""
    found: dict[str, Tensor] = {}
    for g, group in enumerate(groups):
        if "tokens" in group:
            for table, parts in enumerate(find_tokens(model, group["position"])):
                for i in group["layers"]:
                    state = parts[i].state_dict()
                    found |= {f"{g}.tokens.{table}.{i}.{k}": t for k, t in state.items()}
            continue
        layers = find_layers(model, group.get("where"))
        for i in group["layers"]:
            for slot, part in find_parts(layers[i]).items():
                state = dict(part.state_dict())
                if slot == "reparam":
                    state["psi"] = layers[i].proj.parametrizations.weight.original
                    state["V"] = layers[i].qkv.weight[part.rows]
                found |= {f"{g}.{slot}.{i}.{k}": t for k, t in state.items()}
    return found


def _fill_tensors(own: dict[str, Tensor], saved: dict[str, Tensor], source: str) -> None:
    if missing := sorted(own.keys() ^ saved.keys()):
        raise ValueError(f"{source} does not have the weights of what it describes: {missing[0]}")
    for key, tensor in own.items():
        if tensor.shape != saved[key].shape:
            raise ValueError(
                f"{source} was saved for another width or number of heads: {key} has the shape "
                f"{tuple(saved[key].shape)}, and the model needs {tuple(tensor.shape)}"
            )
        tensor.copy_(saved[key])


def _read_files(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: give a folder that save_mechanism wrote")
    weights = (folder / WEIGHTS).read_bytes()
    try:
        described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        groups, written = described["groups"], described["weights"]
        for group in groups:
            slots = [slot for slot in (*SLOTS, "tokens") if slot in group]
            paths = [group[slot]["class_path"] for slot in slots]
            if not paths or not all(isinstance(i, int) for i in group["layers"]):
                raise ValueError("a group needs a class and layers")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / DESCRIPTION} is no description of a mechanism") from error
    if hashlib.sha256(weights).hexdigest() != written:
        raise ValueError(f"{folder / WEIGHTS} is not the file that {DESCRIPTION} describes")
    return groups, _import_safetensors().load(weights)


def _import_safetensors() -> Any:
    try:
        return import_module("safetensors.torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "mechanisms are saved by safetensors: pip install safetensors"
        ) from error


def _replace_file(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)
