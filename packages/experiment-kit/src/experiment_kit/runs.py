"""A run is its merged config: where it lives, what makes it the same run, what is left of it."""

import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from experiment_kit.environment import environment

_MATERIAL = ("seed_everything", "trainer", "model", "data", "start", "files")
# and of these, what cannot change the result: places, devices, loggers, workers, looks
_IMMATERIAL = {
    "trainer": {
        "accelerator", "strategy", "devices", "num_nodes", "logger", "default_root_dir", "plugins",
        "enable_progress_bar", "enable_model_summary", "enable_checkpointing", "log_every_n_steps",
        "profiler", "use_distributed_sampler", "num_sanity_val_steps", "barebones",
    },
    "data": {"data_dir", "num_workers", "workers", "pin_memory"},
}  # fmt: skip


@dataclass(frozen=True)
class Labels:
    """Which experiment a run is, by the names of its overlays; `folder` holds all runs."""

    data: str = "data"
    backbone: str = "backbone"
    method: str = "plain"
    profile: str = "paper"
    folder: str = "runs"

    def __post_init__(self) -> None:
        for name in ("data", "backbone", "method", "profile"):
            if not re.fullmatch(r"\w[\w.-]*", value := getattr(self, name)):
                raise ValueError(
                    f"run.{name} names a folder: letters, digits, _ . -, got {value!r}"
                )


def fingerprint(config: Mapping[str, Any]) -> str:
    """Ten hex digits over everything in a merged config that can change the result.

    >>> a = {"trainer": {"max_epochs": 3, "devices": 1}, "model": {}, "data": {"seed": 0}}
    >>> b = {"trainer": {"max_epochs": 3, "devices": 8}, "model": {}, "data": {"seed": 0}}
    >>> fingerprint(a) == fingerprint(b)
    True
    >>> fingerprint(a) == fingerprint({**a, "model": {"K": 5}})
    False
    """
    kept: dict[str, Any] = {key: config.get(key) for key in _MATERIAL}
    kept["trainer"] = _without(kept.get("trainer"), _IMMATERIAL["trainer"])
    data = dict(kept.get("data") or {})
    kept["data"] = _without(data, _IMMATERIAL["data"])
    if "init_args" in data:
        kept["data"]["init_args"] = _without(data["init_args"], _IMMATERIAL["data"])
    text = json.dumps(_canonical(kept), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _canonical(value: Any, key: str = "") -> Any:
    """Whole numbers as integers, and nothing for null, so that a new empty slot changes no run.

    Which of 3 and 3.0 a parser makes of a Union of both depends on which library was imported
    first, since typing caches Unions without regard to order. Lightning's 1 (one batch) and 1.0
    (all of them) stay apart.
    """
    if isinstance(value, Mapping):
        return {key: _canonical(part, key) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    ambiguous = value == 1.0 and (key.startswith("limit_") or key == "val_check_interval")
    return (
        int(value) if isinstance(value, float) and value.is_integer() and not ambiguous else value
    )


def _without(mapping: Mapping[str, Any] | None, names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in (mapping or {}).items() if key not in names}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is either there whole or not there: a sibling, synced, then renamed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, "whole")
    >>> path.read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # a full disk is told of without a name
        error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Run:
    """One run's folder.

    >>> Run(Path("runs/sequence/jv-uea/plain/seed-0-abc")).checkpoint_folder.name
    'checkpoints'
    """

    folder: Path

    @classmethod
    def of(cls, app: str, config: Mapping[str, Any]) -> "Run":
        """The run of a merged config, as a plain mapping with the groups `run` and `trainer`."""
        labels = Labels(**config["run"])
        name = f"seed-{config['seed_everything']}-{fingerprint(config)}"
        place = Path(labels.folder) / app / f"{labels.data}-{labels.backbone}" / labels.method
        return cls(place / name)

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints lie: best.ckpt and step=N.ckpt."""
        return self.folder / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        """What a finished run measured; None while it is not finished."""
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, the last file of a run; keep the two newest checkpoints."""
        write_atomically(self.folder / "result.json", json.dumps(result, indent=2) + "\n")
        files = self.checkpoint_folder.glob("step=*.ckpt")
        for path in sorted(files, key=checkpoint_step)[:-2]:
            path.unlink()

    def checkpoint(self) -> Path | None:
        """The newest whole checkpoint; damaged ones are set aside, with a warning."""
        files = self.checkpoint_folder.glob("step=*.ckpt")
        for path in sorted(files, key=checkpoint_step, reverse=True):
            if is_whole(path):
                return path
            aside = path.replace(path.with_suffix(".damaged"))
            print(f"warning: {path} is damaged; set aside as {aside.name}", file=sys.stderr)
        return None

    def judged(self) -> Path | None:
        """The checkpoint that is tested: the best, or the newest of a run that validated none."""
        best = self.checkpoint_folder / "best.ckpt"
        if best.exists():
            return best
        return None if self.result() is None else self.checkpoint()

    def reached(self) -> int | None:
        """The step of the newest checkpoint, by its name alone; None before the first."""
        steps = [checkpoint_step(path) for path in self.checkpoint_folder.glob("step=*.ckpt")]
        return max(steps, default=None)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a run against other processes; wait where another holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for the process that works on {self.folder}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
            for left in self.folder.rglob(".*.part"):  # of a writer that was killed
                left.unlink(missing_ok=True)
            yield

    def describe(self, config: str) -> None:
        """Save the config that alone reruns this run, and the environment of each of its starts."""
        write_atomically(self.folder / "config.yaml", config)
        path = self.folder / "environment.yaml"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        write_atomically(path, before + yaml.safe_dump([environment()]))


def is_whole(path: Path) -> bool:
    """Whether a file is a checkpoint that can be read to its end."""
    try:
        return "state_dict" in torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever a damaged archive makes the reader raise
        return False


def checkpoint_step(path: Path) -> int:
    """The step that a checkpoint's name tells.

    >>> checkpoint_step(Path("step=120.ckpt"))
    120
    """
    return int(path.stem.partition("=")[2])
