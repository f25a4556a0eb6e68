"""Checkpoints of a model: those of a folder by their steps, and weights under its names."""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiment_kit.errors import UserError, convert_user_errors, import_library
from experiment_kit.run_files import load_torch_file

_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
# where a file of training keeps its weights
_WEIGHTS = ("state_dict", "model_state_dict", "model", "module")
# files of a folder by transformers and timm: parts of one model, or the whole
_PARTS = ("*-of-*.safetensors", "*-of-*.bin", "model.safetensors", "pytorch_model.bin")
# buffers that transformers saved before, and the counters of thop
NO_WEIGHTS = ("attn.bias", "masked_bias", "inv_freq", "total_ops", "total_params")
PREFIXES = ("", "model.")  # the model's own, beside those of an average or a teacher
_WRAPPERS = re.compile(r"_(orig_mod|\w+_wrapped_module)\.")  # torch.compile's, FSDP's and such


def list_checkpoints(model: str) -> dict[str, int]:
    """Return the models of a folder of checkpoints by their steps; {} for any other model."""
    kind, _, name = model.partition(":")
    folder = Path(name)
    if not name or not folder.is_dir() or (kind == "checkpoint" and _list_parts(folder)):
        return {}
    inside: list[Path] = []
    if kind == "hf" and not (folder / "config.json").is_file():
        inside = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    elif kind == "checkpoint":
        inside = [path for path in folder.rglob("*") if path.suffix in _SUFFIXES]
    # epoch=2-val_acc=0.71 is of step 2, not 71
    names = {path: re.findall(r"(?i)(?:step|iter|epoch)\D?(\d+)", path.stem) for path in inside}
    numbers = {path: found or re.findall(r"\d+", path.stem) for path, found in names.items()}
    steps = {f"{kind}:{path}": int(found[-1]) for path, found in numbers.items() if found}
    if not steps and kind == "checkpoint":
        raise UserError(f"{model} has no checkpoint with a step in its name, as step=100.ckpt has")
    return dict(sorted(steps.items(), key=lambda item: item[1]))


def load_checkpoint_weights(network: nn.Module, path: Path) -> None:
    """Load all weights of a file, under any prefix such as `net.` or `module.`."""
    expected, origin = network.state_dict(), f"checkpoint {path}"
    weights = read_weights(path, origin)
    # the prefix that gives most weights expected names and shapes
    prefixes = Counter(
        name.removesuffix(own)
        for name, weight in weights.items()
        for own, tensor in expected.items()
        if (name == own or name.endswith(f".{own}")) and weight.shape == tensor.shape
    )
    whole = [x for x, count in prefixes.items() if count == len(expected)]
    prefix = choose_model(whole or [x for x, _ in prefixes.most_common(1)], PREFIXES, origin)
    averages = tuple(x for x in whole if x != prefix)
    weights = {name.removeprefix(prefix): x for name, x in weights.items()
               if name.startswith(prefix) and not name.startswith(averages)}  # fmt: skip
    if lost := [name for name in expected if name not in weights]:
        raise UserError(f"{origin} is of another model: it lacks {lost[0]} "
                        f"{tuple(expected[lost[0]].shape)} ({len(lost)} such)")  # fmt: skip
    known = {*expected, *(name for name, _ in network.named_buffers())}  # some are not saved today
    extra = [k for k, x in weights.items() if isinstance(x, Tensor) and k not in known]
    if extra := [name for name in extra if not name.endswith(NO_WEIGHTS)]:
        raise UserError(f"{origin} is of another model: it has {extra[0]} ({len(extra)} such): "
                        "give --kwargs, or a function that attaches it as --class")  # fmt: skip
    with convert_user_errors(RuntimeError, prefix=f"{origin} is of another model: "):
        network.load_state_dict({name: weights[name] for name in expected})


def choose_model(found: Iterable[str], preferred: Sequence[str], origin: str) -> str:
    """Return the name of the one model of a file, or the first that is preferred of several."""
    names = [name for name in preferred if name in found][:1] or [*found]
    if len(names) > 1:
        raise UserError(f"{origin} holds several models ({', '.join(names)}): save one alone")
    return names[0] if names else ""


def read_weights(path: Path, origin: str) -> dict[str, Any]:
    """Return the weights of a file of torch, Lightning or safetensors; `origin` names it."""
    path, *others = _list_parts(path) or [path]
    if not path.is_file() or not path.stat().st_size:
        raise UserError(f"{origin} does not exist, or is no file, or is empty")
    if path.suffix == ".distcp":
        join = "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE"
        raise UserError(f"{origin} is a part of one: save one file by python -m {join}")
    # a damaged archive makes the reader raise anything
    made = "as torch.save(model.state_dict(), FILE) makes"
    with convert_user_errors(Exception, prefix=f"{origin} is not a readable checkpoint, {made}: "):
        with path.open("rb") as file:
            is_safe = file.read(9)[8:] == b"{"  # safetensors, whatever its name
        load = import_library("safetensors.torch").load_file if is_safe else load_torch_file
        with torch.serialization.safe_globals([Namespace]):  # options of DeiT's and timm's runs
            content = {key: x for part in (path, *others) for key, x in load(part).items()}
        parts = {"": content, **content}
        states = {k: x for k, x in parts.items() if isinstance(x, Mapping)}
        found = [k for k, x in states.items() if any(isinstance(t, Tensor) for t in x.values())]
    weights = parts[choose_model(found, (*_WEIGHTS, ""), origin)]
    for name, x in weights.items():
        if str(name).endswith("weight") and isinstance(x, Tensor) and x.element_size() == 1:
            raise UserError(f"{origin} has {name} in 8 bits without its scale: save it as float32")
    return {_WRAPPERS.sub("", str(name)): x for name, x in weights.items()}


def _list_parts(folder: Path) -> list[Path]:
    return next(filter(None, (sorted(folder.glob(pattern)) for pattern in _PARTS)), [])
