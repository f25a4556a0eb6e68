"""Save what is attached to a model in a folder of its own, and attach it to another model.

`mechanism.json` describes the classes, their arguments and their layers; `mechanism.safetensors`
has their weights. Names count layers, so that a body can take what its task model had.

A description is a list of groups of layers: `{"layers": [0, 1], "filter": {"class_path": ...,
"init_args": {...}}}`, also with `"kernel"`, `"reparam"`, `"where"`, or `"tokens"` and `"position"`.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.checks import check_models
from attention_core.filters import Plain, dropout_on_H, share_dropout
from attention_core.hosts.adapter import Filtered, find_active
from attention_core.hosts.attach import Model, attach, list_trained_weights
from attention_core.hosts.hook_points import Position, find_import_path, find_positions
from attention_core.hosts.model_card import format_card
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import Where, is_known_attention, self_attention_modules
from attention_core.mechanism import find_arguments

# the field of a config that describes what is attached
FIELD = "attention_core"
DESCRIPTION, WEIGHTS = "mechanism.json", "mechanism.safetensors"
SLOTS = ("filter", "kernel", "reparam")
# the arguments that the host gives: the number of heads, of channels, or both
_NUM_HOST_ARGS = {"filter": 1, "kernel": 2, "reparam": 1, "tokens": 1}


def save_mechanism(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write what is attached to a model, its weights and its layers, without the model's own.

    `huggingface_hub.upload_folder` shares the folder, which has a model card, unless it has a
    README.md of yours. An EigenSpectrum writes the value projections too, which training moves. A
    part that layers share becomes one of each, with equal weights.
    """
    check_models("save_mechanism", model=model)
    groups = describe_mechanisms(model)
    if not groups:
        raise ValueError(
            f"{type(model).__name__} has no mechanism: attach one first; a SelfAttention, which is "
            "made with its own, is saved by its state_dict"
        )
    tensors = _list_tensors(model, groups)
    if any(tensor.is_meta for tensor in tensors.values()):
        raise ValueError("weights are offloaded: call accelerate's remove_hook_from_submodules")
    for part in chain.from_iterable(group.values() for group in groups):
        if isinstance(part, dict) and "init_args" not in part:
            raise ValueError(
                f"{part['class_path']} has arguments that no file can describe, or differs between "
                "layers: store each argument under an attribute of its name, and undo "
                "parametrizations and pruning"
            )
    # clones: shared weights appear under every layer; a rank of FSDP holds a part of a tensor
    states = {
        key: getattr(t, "full_tensor", t.detach)().detach().cpu().contiguous().clone()
        for key, t in tensors.items()
    }
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    groups = [group | {"num_layers": _count_layers(model, group)} for group in groups]
    described = {"model": type(model).__name__, "groups": groups}
    with TemporaryDirectory(dir=path) as made:  # each file appears whole: other ranks write it too
        import_module("safetensors.torch").save_file(states, Path(made) / WEIGHTS)
        (Path(made) / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n", "utf-8")
        for name in (WEIGHTS, DESCRIPTION):
            os.replace(Path(made) / name, path / name)
    parts = [part for part in model.modules() if hasattr(part, "trained_names")]
    card = format_card(model, [part for part in parts if not isinstance(part, Plain)], states)
    file = path / "README.md"
    if not file.exists() or "library_name: attention-core" in file.read_text(encoding="utf-8"):
        file.write_text(card, encoding="utf-8")


def load_mechanism(
    model: Model,
    folder: str | os.PathLike[str],
    trust: Collection[str] | str = (),
    where: Where | None = None,
) -> Model:
    """Attach to a model what `save_mechanism` wrote, in place, with its weights.

    `folder` may be the name of a repository on the hub of huggingface: "user/name". After any
    exception the model is as it was. `trust` names the classes, as `package.Class`, that may be
    imported besides those of attention_core. `where` names the class of the layers, as in `attach`,
    in place of the saved model's.

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
    load_file = import_module("safetensors.torch").load_file
    with convert_errors(str(folder)):
        if not Path(folder).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
            download = import_module("huggingface_hub").snapshot_download
            try:
                folder = download(str(folder), allow_patterns="mechanism.*")
            except OSError as error:
                raise ValueError(f"there is no folder {folder} here or on the hub") from error
        for name in (DESCRIPTION, WEIGHTS):
            if not (Path(folder) / name).is_file():
                raise ValueError(f"{folder} has no {name}: give a folder that save_mechanism wrote")
        groups = json.loads((Path(folder) / DESCRIPTION).read_text(encoding="utf-8"))["groups"]
        if where is not None:
            groups = [g if "tokens" in g else g | {"where": where} for g in groups]
        weights = [*model.parameters()] if any("reparam" in group for group in groups) else []
        with restore_model(model, weights, only_on_error=True), torch.no_grad():
            attach_groups(model, groups, str(folder), trust)
            own, saved = _list_tensors(model, groups), load_file(Path(folder) / WEIGHTS)
            if missing := sorted(own.keys() ^ saved.keys()):
                raise ValueError(f"{folder} lacks weights of what it describes: {missing[0]}")
            for key, tensor in own.items():
                fill_tensor(tensor, saved[key], key, str(folder))
    return model


def _count_layers(model: nn.Module, group: dict[str, Any]) -> int:
    """Return how many layers a model has of the kind of a group."""
    if "tokens" in group:
        return len(find_positions(model, group["position"])[0])
    return len(_find_layers(model, group.get("where")))


def _list_tensors(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the weights of the described parts, by group, slot, layer and their own name."""
    found: dict[str, Tensor] = {}
    for g, group in enumerate(groups):
        if "tokens" in group:
            for table, parts in enumerate(_list_tokens(model, group["position"])):
                for i in group["layers"]:
                    state = parts[i].state_dict()
                    found |= {f"{g}.tokens.{table}.{i}.{k}": t for k, t in state.items()}
            continue
        layers = _find_layers(model, group.get("where"))
        for i in group["layers"]:
            for slot, part in _find_parts(layers[i]).items():
                state = dict(part.state_dict())
                if slot == "reparam":
                    state |= {"psi": part.psi, "V": part.value}
                found |= {f"{g}.{slot}.{i}.{k}": t for k, t in state.items()}
    return found


def fill_tensor(tensor: Tensor, saved: Tensor, key: str, source: str) -> None:
    """Copy a weight of a file; ValueError for another shape or kind, and for nan."""
    if tensor.shape != saved.shape:
        raise ValueError(
            f"{source} was saved for another width or number of heads: {key} has the shape "
            f"{tuple(saved.shape)}, and the model needs {tuple(tensor.shape)}"
        )
    if tensor.is_floating_point() != saved.is_floating_point() or not saved.isfinite().all():
        raise ValueError(f"{source} is damaged: {key} is not of finite numbers of its kind")
    tensor.copy_(saved)


@contextmanager
def convert_errors(source: str) -> Iterator[None]:
    """Turn any exception, as that of other types in a file, into ValueError."""
    try:
        yield
    except Exception as error:
        if type(error) is ValueError:  # not a subclass, as of text that is no JSON
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{source} describes no mechanism of this model: {reason}") from error


def _find_layers(model: nn.Module, where: Where | None) -> list[Any]:
    """Return the layers that `attach` counts with this `where`, filtered already or not."""
    return [m for m, _ in self_attention_modules(model, where) if where or is_known_attention(m)]


def _find_parts(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a layer by their slot; none if it is not filtered or only Plain."""
    if not isinstance(layer, Filtered):
        return {}
    module: Any = layer
    parts = {
        "filter": find_active(module.filter),
        "kernel": find_active(getattr(module, "kernel", None)),
        "reparam": next(iter(module.spectrum), None),
    }
    found = {slot: part for slot, part in parts.items() if part is not None}
    return {} if len(found) == 1 and isinstance(module.filter, Plain) else found


def describe_mechanisms(model: nn.Module) -> list[dict[str, Any]]:
    """Describe all that is attached to a model, as a list of groups of layers."""
    filtered = [module for module in model.modules() if _find_parts(module)]
    wheres = {None if is_known_attention(m) else find_import_path(m) for m in filtered}
    described = []
    for where in sorted(wheres, key=str):
        for i, module in enumerate(_find_layers(model, where)):
            if parts := _find_parts(module):
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


def _list_tokens(model: nn.Module, position: Position) -> list[dict[int, Any]]:
    """Return the functions of tokens at a position by their layers, for each table of it."""
    tables = []
    for found in find_positions(model, position):
        targets: Any = [module.get_submodule(point.target) for module, point in found]
        chosen = [i for i, t in enumerate(targets) if getattr(t, "tokens_position", 0) == position]
        tables.append({i: find_active(targets[i].tokens) for i in chosen})
    return tables


def _describe_position(model: nn.Module, position: Position) -> list[tuple[int, str]]:
    """Return the layers that have a function of tokens at a position, with its description."""
    tables = [
        {i: describe_part(part, "tokens") for i, part in table.items()}
        for table in _list_tokens(model, position)
    ]
    merged = {i: part for table in tables for i, part in table.items()}
    if any(table != tables[0] for table in tables):  # no slice of layers selects these
        merged = {i: {"class_path": part["class_path"]} for i, part in merged.items()}
    return [(i, json.dumps({"tokens": part, "position": position})) for i, part in merged.items()]


def describe_part(part: nn.Module, slot: str) -> dict[str, Any]:
    """Return the class and the arguments of a part, which are left out if they are unknown."""
    args = find_arguments(part, skipped=_NUM_HOST_ARGS[slot])
    part_class = type(part)
    package = import_module(part_class.__module__.partition(".")[0])
    is_public = getattr(package, part_class.__name__, None) is part_class
    home = package.__name__ if is_public else part_class.__module__
    path: dict[str, Any] = {"class_path": f"{home}.{part_class.__qualname__}"}
    if hasattr(part, "dropout_mask"):
        path["dropout_mask"] = part.dropout_mask
    if not {*list_trained_weights(part)} <= {*getattr(part, "trained_names", ())}:
        return path  # no file has the name of a weight that torch computes
    try:
        return path | {"init_args": json.loads(json.dumps(args))}
    except TypeError:  # an argument is not stored, or is not JSON
        return path


def attach_groups(
    model: nn.Module, groups: list[dict[str, Any]], source: str, trust: Collection[str] | str
) -> None:
    """Attach described groups of layers; `source` is where the description comes from."""
    # tokens first: a layer with a filter takes nothing else; classes that `where` names last:
    # `attach` counts them once they are filtered
    trust = [trust] if isinstance(trust, str) else trust
    for group in sorted(groups, key=lambda group: ("filter" in group, "where" in group)):
        slots = [slot for slot in (*SLOTS, "tokens") if slot in group]
        made = {slot: _make_factory(group[slot], source, trust) for slot in slots}
        if "position" in group:
            made["position"] = group["position"]
        count = _count_layers(model, group)
        described = group.get("num_layers", max(count, *(i + 1 for i in group["layers"])))
        if count != described:
            text = " by this where=: leave it out, as the saved one is used"
            where = text if callable(group.get("where")) else ""
            raise ValueError(f"{source} is of {described} layers, this model of {count}{where}")
        attach(model, made.pop("filter", Plain), group["layers"], where=group.get("where"), **made)


def _make_factory(part: dict[str, Any], source: str, trust: Collection[str]) -> Any:
    name = part["class_path"]
    if "init_args" not in part:
        raise ValueError(
            f"{source} was saved with {name}, whose layers or arguments it could not describe: "
            "attach it by hand"
        )
    if not name.startswith("attention_core.") and name not in trust:  # before its module runs
        raise ValueError(
            f"{source} names {name}, which is no filter or function of tokens of attention_core: "
            f"read its code, and allow it by trust=[{name!r}] or --trust={name}"
        )
    home, _, class_name = name.rpartition(".")
    part_class = getattr(import_module(home), class_name, None)
    if not (isinstance(part_class, type) and issubclass(part_class, nn.Module)):
        raise ValueError(f"{name} is no filter or function of tokens: import it in {home} first")
    make = partial(part_class, **part["init_args"])
    if "dropout_mask" not in part:
        return make
    change = {"shared": share_dropout, "filtered": dropout_on_H}[part["dropout_mask"]]
    return lambda num_heads: change(make(num_heads))
