"""A run: the hash of its config, its folder, its lock, its files, and the atomic writes."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout

from experiment_kit import run_files
from experiment_kit.environment import describe_code, describe_environment
from experiment_kit.errors import UserError
from experiment_kit.run_files import FolderName, is_whole_checkpoint, parse_folder, parse_step

_HASHED = ("seed_everything", "trainer", "model", "model_class", "data", "start", "files")
# keys of these groups that cannot change the result: paths, devices, loggers, workers, output
_IGNORED = {
    "trainer": {
        "accelerator", "strategy", "devices", "num_nodes", "logger", "default_root_dir", "plugins",
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
    """Return what can change the result: no paths, devices, loggers or workers."""
    trainer, data = (_drop_keys(config.get(key), _IGNORED[key]) for key in ("trainer", "data"))
    if "init_args" in data:
        data["init_args"] = _drop_keys(data["init_args"], _IGNORED["data"])
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
        return Path(value).name if parse_folder(Path(value)) else value
    shares = key.startswith("limit_") or key in ("val_check_interval", "overfit_batches")
    ambiguous = value == 1.0 and shares
    whole = isinstance(value, float) and value.is_integer() and not ambiguous
    return int(value) if whole else value


def _drop_keys(mapping: Mapping[str, Any] | None, names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in (mapping or {}).items() if key not in names}


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], None]) -> None:
    """Write a whole file or nothing; a callable writes what is too large for memory."""
    if isinstance(content, str):
        content = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Write the entries of a folder to disk: a power cut may undo a rename that is in memory."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def has_content(folder: Path) -> bool:
    """Return True for a folder that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def write_folder_once(
    path: Path, write: Callable[[Path], object], is_whole: Callable[[Path], bool] = has_content
) -> Path:
    """Let one process fill a hidden folder that becomes `path`; keep a `path` that is whole."""
    path = path.absolute()
    if is_whole(path):
        return path
    with hold_lock(path.with_name(f"{path.name}.lock")):
        if not is_whole(path):
            unfinished = path.with_name(f".{path.name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                write(unfinished)
                os.sync()  # at once: an fsync of each of many small files takes much longer
                shutil.rmtree(path, ignore_errors=True)
                unfinished.rename(path)
                sync_folder(path.parent)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return path


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file exclusively; wait, with a note, while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for the process that holds {path}", file=sys.stderr)
        held = lock.acquire()
    with held:
        yield


@dataclass(frozen=True)
class Run:
    """The folder of one run: checkpoints, config.yaml, environment.yaml and result.json."""

    folder: Path

    @classmethod
    def parse(cls, folder: Path | str) -> FolderName | None:
        """Return app, data, backbone, method, seed and hash of a run's folder; None for another."""
        return parse_folder(Path(folder).absolute())

    @classmethod
    def find_all(cls, root: Path | str, app: str = "*") -> list["Run"]:
        """Return the runs in a folder of runs, of one app or of all, sorted by their paths."""
        found = Path(root).glob(f"{app}/*/*/seed-*")
        return [cls(folder) for folder in sorted(found) if cls.parse(folder)]

    @classmethod
    def from_config(cls, app: str, config: Mapping[str, Any]) -> "Run":
        """Return the run of a merged config, a plain mapping."""
        name = RunName(**config["run"])
        experiment = Path(name.folder) / app / f"{name.data}-{name.backbone}" / name.method
        return cls(experiment / f"seed-{config['seed_everything']}-{config_hash(config)}")

    @property
    def hash(self) -> str:
        """The hash of the config; UserError if the folder is not named as one of a run."""
        if name := parse_folder(self.folder):
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
        with hold_lock(self.folder / "lock"):
            for path in self.folder.rglob(".*.part"):
                path.unlink(missing_ok=True)
            yield

    def save_config(self, config: str) -> None:
        """Save the config that alone repeats the run, and the environment of each start."""
        write_atomically(self.folder / "config.yaml", config)
        path = self.folder / "environment.yaml"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        write_atomically(path, before + yaml.safe_dump([describe_environment()]))

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
        write_atomically(self.folder / "result.json", json.dumps(content, indent=2) + "\n")
        self.remove_old_checkpoints()

    def remove_old_checkpoints(self) -> None:
        """Keep the two newest: the older one serves if a bad disk damages the newer one."""
        for path in self._list_checkpoints()[2:]:
            path.unlink(missing_ok=True)

    def find_newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint to resume from; rename damaged ones, with a warning."""
        for path in self._list_checkpoints():
            if is_whole_checkpoint(path, resumable=True):
                return path
            renamed = path.replace(path.with_suffix(".damaged")).name
            print(f"warning: {path} is damaged or holds nan; renamed to {renamed}", file=sys.stderr)
        return None

    def find_best_checkpoint(self, is_validated: bool) -> Path | None:
        """Return best.ckpt; None if no epoch was validated, UserError if it is gone or damaged."""
        best = self.checkpoint_folder / "best.ckpt"
        if is_whole_checkpoint(best):
            return best
        if best.exists() or is_validated:
            state = "damaged" if best.exists() else "gone"
            raise UserError(
                f"{best}, the weights of the best epoch, is {state}: put it back, or remove"
                f" {self.folder} to train again"
            )
        return None

    def find_test_checkpoint(self) -> Path | None:
        """Return the best checkpoint, or the newest of a finished run that never validated."""
        result = self.read_result()
        best = self.find_best_checkpoint((result or {}).get("best_epoch") is not None)
        return best or (None if result is None else self.find_newest_checkpoint())

    def find_latest_step(self) -> int | None:
        """Return the step in the newest checkpoint's name; None if there is no checkpoint."""
        return next(map(parse_step, self._list_checkpoints()), None)

    def _list_checkpoints(self) -> list[Path]:
        files = self.checkpoint_folder.glob("step=*.ckpt")
        return sorted(files, key=parse_step, reverse=True)  # newest first
