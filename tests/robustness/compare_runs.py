"""Everything that a finished run leaves, and the differences between two of them."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from experiment_kit.pages.records import read_scalars
from experiment_kit.run import Run
from torch import Tensor

# what two uninterrupted runs do not share either: times, the machine, and digests of them
UNEQUAL = re.compile(
    r"result\.json: (seconds|digest|environment|versions|commit|modified|machine"
    r"|metrics\.(time/|test/rtf|test/seconds|speed/))"
    r"|scalars: (time/|test/rtf|test/seconds)"
)
TRAINED = ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers")
SCORES = "best_model_score", "wait_count", "stopped_epoch", "best_score"


def compare_runs(whole: Path, other: Path) -> list[str]:
    """Return one line for each value that differs; paths are folders of finished runs."""
    one, two = (dict(list_values(Run(folder))) for folder in (whole, other))
    return [
        f"{key}: {one.get(key, 'absent')} became {two.get(key, 'absent')}"
        for key in sorted(one.keys() | two.keys())
        if not UNEQUAL.match(key) and repr(one.get(key)) != repr(two.get(key))
    ]


def list_values(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield every value of a run's files by name."""
    for name in ("result.json", "spectral.json"):
        path = run.folder / name
        yield from flatten(f"{name}: ", json.loads(path.read_text()) if path.exists() else {})
    yield "config.yaml", (run.folder / "config.yaml").read_text()
    newest = run.checkpoint_folder / f"step={run.find_latest_step()}.ckpt"
    for name, path in {"best": run.checkpoint_folder / "best.ckpt", "newest": newest}.items():
        if path.exists():
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            yield f"{name}: step in the name", path.stem
            yield from flatten(f"{name}: ", {key: checkpoint.get(key) for key in TRAINED})
            states = flatten(f"{name}: callbacks.", checkpoint.get("callbacks", {}))
            yield from ((key, value) for key, value in states if key.endswith(SCORES))
    for tag, series in read_scalars(run.folder).items():
        yield from ((f"scalars: {tag} at step {step}", value) for step, value in series.items())
    yield "files", list_files(run.folder)


def flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested containers by their path; tensors as text of all their bits."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flatten(f"{prefix}{key}.", part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from flatten(f"{prefix}{index}.", part)
    elif isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(bits).hexdigest()[:8] if value.numel() > 1 else value.item()
        yield prefix.rstrip("."), f"{value.dtype} {tuple(value.shape)} {digest}"
    else:
        yield prefix.rstrip("."), value


def list_files(folder: Path) -> str:
    """Name all files; those of TensorBoard and checkpoints of steps by their kind, once."""
    kinds = {"events.out.tfevents.*": "events", "step=*.ckpt": "step", "log*.txt": "log"}
    names = set()
    for path in folder.rglob("*"):
        if path.is_file():
            kind = next((kind for pattern, kind in kinds.items() if path.match(pattern)), path.name)
            names.add(str(path.relative_to(folder).with_name(kind)))
    # the two newest stay: an interruption adds one to a run that would have made one alone
    steps = len([*folder.glob("checkpoints/step=*.ckpt")])
    return ", ".join([*sorted(names - {"log"}), f"{max(0, steps - 2)} checkpoints too many"])
