"""A run: the hash of its config, its folder, its lock, and its files."""

import hashlib
import heapq
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiment_kit import run_files
from experiment_kit.environment import describe_code, describe_environment
from experiment_kit.errors import OURS, UserError

MAX_FILES = 1000  # whose content identifies a run's data; all are counted
_SAMPLE = 1 << 20  # bytes at both ends of a file that identify it
_HASHED = ("seed_everything", "trainer", "model", "model_class", "data", "start", "files")
# keys of these groups that cannot change the result: paths, devices, loggers, workers, output
_IGNORED = {
    "trainer": {
        "accelerator", "strategy", "devices", "num_nodes", "logger", "default_root_dir",
        "enable_progress_bar", "enable_model_summary", "enable_checkpointing", "log_every_n_steps",
        "profiler", "use_distributed_sampler", "num_sanity_val_steps", "barebones",
    },
    "data": {"data_dir", "num_workers", "workers", "pin_memory"},
}  # fmt: skip


@dataclass(frozen=True)
class RunName:
    """Names of the configs of a run, which name its folder.

    Args:
        data: Data set.
        backbone: Network.
        method: Mechanisms.
        profile: Scale, as smoke; paper is the full one.
        protocol: Splits and scores of a paper; "" is that of the data.
        folder: Parent of all runs.
    """

    data: str = "data"
    backbone: str = "backbone"
    method: str = "plain"
    profile: str = "paper"
    protocol: str = ""
    folder: str = "runs"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_free = name == "folder" or (name == "protocol" and not value)
            if not is_free and not re.fullmatch(r"\w[\w.-]*", value):
                raise ValueError(f"run.{name} must be letters, digits, _ . -, got {value!r}")


def config_hash(config: Mapping[str, Any]) -> str:
    """Return ten hex digits over everything in a merged config that can change the result."""
    text = json.dumps(_normalize_value(select_settings(config)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def select_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can change the result: no paths of our data, devices, loggers or workers."""
    trainer, data = (_drop_keys(config.get(key), _IGNORED[key]) for key in ("trainer", "data"))
    if "init_args" in data:
        is_ours = OURS.match(data.get("class_path", "experiment_kit"))  # its name tells its files
        ignored = _IGNORED["data"] - ({"data_dir"} if not is_ours else set())
        data["init_args"] = _drop_keys(data["init_args"], ignored)
    return {**{key: config.get(key) for key in _HASHED}, "trainer": trainer, "data": data}


def _normalize_value(value: Any, key: str = "") -> Any:
    """Turn whole floats into integers and drop nulls, so that a new null option keeps the hash.

    Lightning's 1 (one batch) and 1.0 (all of them) stay apart. A run is known by seed and hash.
    """
    if isinstance(value, Mapping):
        return {k: _normalize_value(part, k) for k, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_normalize_value(part) for part in value]
    if isinstance(value, str):
        return Path(value).name if run_files.parse_folder(Path(value)) else value
    shares = key.startswith("limit_") or key in ("val_check_interval", "overfit_batches")
    ambiguous = value == 1.0 and shares
    whole = isinstance(value, float) and value.is_integer() and not ambiguous
    return int(value) if whole else value


def _drop_keys(mapping: Mapping[str, Any] | None, names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in (mapping or {}).items() if key not in names}


def describe_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe files and folders: number, bytes and names of all, the content of a sample."""
    files, names = list_files(paths), hashlib.sha256()
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name, size in sizes.items():
        names.update(os.fsencode(f"{name}\0{size}\0"))
    sample = heapq.nsmallest(MAX_FILES, files, lambda name: zlib.crc32(os.fsencode(name)))
    content = {}
    for name in sample:
        digest = hashlib.sha256(f"{sizes[name]}".encode())
        with files[name].open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, sizes[name] - _SAMPLE))
            digest.update(file.read(_SAMPLE))
        content[name] = digest.hexdigest()[:16]
    totals = {"files": len(files), "bytes": sum(sizes.values()), "names": names.hexdigest()}
    return {**totals, "content": content}


def list_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files, and those within the folders, by their names; hidden ones are left out."""
    paths = [path.absolute() for path in paths]
    top = Path(os.path.commonpath(paths)) if paths else Path()
    top = top.parent if top.is_file() else top
    found = [file for path in sorted(paths) for file in (path, *run_files.walk_folder(path))]
    return {os.path.relpath(file, top): file for file in found if file.is_file()}


@dataclass(frozen=True)
class Run:
    """The folder of one run: checkpoints, config.yaml, environment.yaml and result.json."""

    folder: Path

    @classmethod
    def parse(cls, folder: Path | str) -> run_files.FolderName | None:
        """Return app, data, backbone, method, seed and hash of a run's folder; None for another."""
        return run_files.parse_folder(Path(os.path.abspath(folder)))

    @classmethod
    def find_all(cls, root: Path | str, app: str = "*") -> list["Run"]:
        """Return the runs in a folder of runs, of one app or of all, sorted by their paths."""
        found = Path(root).glob(f"{app}/*/*/seed-*")
        return [cls(folder) for folder in sorted(found) if cls.parse(folder)]

    @classmethod
    def from_config(cls, app: str, config: Mapping[str, Any]) -> "Run":
        """Return the run of a merged config, a plain mapping."""
        name = RunName(**config["run"])
        task = Path(name.folder).expanduser() / app / f"{name.data}-{name.backbone}"
        return cls(task / name.method / f"seed-{config['seed_everything']}-{config_hash(config)}")

    @property
    def hash(self) -> str:
        """The hash of the config; UserError if the folder is not named as one of a run."""
        if name := run_files.parse_folder(self.folder):
            return name.hash
        raise UserError(f"{self.folder} is no seed-<n>-<hash>: name the folder of a run")

    @property
    def task_folder(self) -> Path:
        """The parent of the runs of one app, data set and backbone."""
        return self.folder.parents[1]

    @property
    def checkpoint_folder(self) -> Path:
        """Folder of best.ckpt and step=N.ckpt."""
        return self.folder / "checkpoints"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run against other processes; remove the partial files of a killed one."""
        with run_files.hold_lock(self.folder / "lock"):
            for path in filter(Path.is_file, self.folder.rglob(".*.part")):
                path.unlink(missing_ok=True)
            yield

    def save_config(self, config: str) -> None:
        """Save the config that alone repeats the run, and the environment of each start."""
        run_files.write_atomically(self.folder / "config.yaml", config)
        path = self.folder / "environment.yaml"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        run_files.write_atomically(path, before + yaml.safe_dump([describe_environment()]))

    def record_data(self, paths: Sequence[Path], names: Mapping[str, Any]) -> None:
        """Record the data of the run, and the names in its answers; raises as `check_data`.

        It is no part of the hash: a run may move to another machine before its data is there.
        """
        found = {**self.check_data(paths), "vocabulary": names}
        run_files.write_atomically(self.folder / "data.json", json.dumps(found) + "\n")

    def check_names(self, found: Mapping[str, Sequence[str]]) -> bool:
        """Return True if names were recorded; raise UserError if they are others now."""
        known = run_files.read_mapping(self.folder / "data.json", "delete it") or {}
        for kind, names in known.get("vocabulary", {}).items():
            if names != (now := [*found.get(kind, ())]):
                changes = [f"without {x!r}" for x in names if x not in now]
                changes = changes[:2] + [f"with {x!r}" for x in now if x not in names][:2]
                text = f"{self.folder} was trained with other {kind} or splits: they are now"
                order = ", ".join(changes) or "in another order"
                raise UserError(f"{text} {order}: restore the data, or train anew on it")
        return bool(known.get("vocabulary"))

    def check_data(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Describe the data; raise UserError if the run has begun or finished with other data."""
        found, ended = describe_data(paths), self.has_result
        if (ended or self.find_latest_step() is not None) and (change := self.diff_data(found)):
            state = "is finished" if ended else "began"
            raise UserError(
                f"{self.folder} {state} with other data: {change} since it started: restore it, or"
                " train anew in another run.folder, or delete the run's data.json if classes,"
                " vocabulary and splits are still those of the run"
            )
        return found

    def diff_data(self, found: Mapping[str, Any]) -> str:
        """Return how the data differs from the recorded data, as a sentence; "" if it does not."""
        remedy = "delete it if the data is still that of the run"
        known = run_files.read_mapping(self.folder / "data.json", remedy)
        if known is None:  # a run from before there were records
            return ""
        before, after = known["content"], found["content"]
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                is_in_both = name in before and name in after
                return f"{name} {'has changed' if is_in_both else 'was added or removed'}"
        return "" if known["names"] == found["names"] else "files have other names or sizes"

    @property
    def has_result(self) -> bool:
        """True if there is a result, damaged or not."""
        return (self.folder / "result.json").exists()

    def read_result(self) -> dict[str, Any] | None:
        """Return the result of a finished run, else None; UserError if it is damaged."""
        return run_files.read_result(self.folder)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result, the last file of a run, with versions, commit and its digest."""
        content = {**result, "environment": describe_code()}
        content["digest"] = run_files.compute_digest(content)
        text = json.dumps(content, indent=2) + "\n"
        run_files.write_atomically(self.folder / "result.json", text)
        self.remove_old_checkpoints()

    def remove_old_checkpoints(self) -> None:
        """Keep the two newest: the older one serves if a bad disk damages the newer one."""
        for path in self._list_checkpoints()[2:]:
            path.unlink(missing_ok=True)

    def find_newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint to resume from; rename damaged ones, with a warning."""
        for path in self._list_checkpoints():
            if run_files.is_whole_checkpoint(path, resumable=True):
                return path
            renamed = path.replace(path.with_suffix(".damaged")).name
            print(f"warning: {path} is damaged or holds nan; renamed to {renamed}", file=sys.stderr)
        return None

    def find_best_checkpoint(self, is_validated: bool) -> Path | None:
        """Return best.ckpt; None if no epoch was validated, UserError if it is gone or damaged."""
        best = self.checkpoint_folder / "best.ckpt"
        if run_files.is_whole_checkpoint(best):
            return best
        if best.exists() or is_validated:
            state = "damaged" if best.exists() else "gone"
            text = f"{best}, the weights of the best epoch, is {state}: put it back, or"
            raise UserError(f"{text} remove {self.folder} to train again")
        return None

    def find_test_checkpoint(self) -> Path | None:
        """Return the best checkpoint, or the newest of a finished run that never validated."""
        result = self.read_result()
        best = self.find_best_checkpoint((result or {}).get("best_epoch") is not None)
        return best or (None if result is None else self.find_newest_checkpoint())

    def find_latest_step(self) -> int | None:
        """Return the step in the newest checkpoint's name; None if there is no checkpoint."""
        return next(map(run_files.parse_step, self._list_checkpoints()), None)

    def _list_checkpoints(self) -> list[Path]:
        found = self.checkpoint_folder.glob("step=*.ckpt")  # a callback of a user may add others
        files = (path for path in found if path.stem.removeprefix("step=").isdecimal())
        return sorted(files, key=run_files.parse_step, reverse=True)  # newest first
