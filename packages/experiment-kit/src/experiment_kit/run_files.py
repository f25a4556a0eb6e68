"""Files that are written whole or not at all, and those of runs, which are read with checks."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeGuard, TypeVar

import torch
import yaml
from filelock import FileLock, Timeout

from experiment_kit.errors import UserError, convert_user_errors, shorten_text

MAX_VALUE = 3.4028235e38  # the largest float32, the type of metrics
_RESCORE = "delete it, and the next fit of the run scores it again"
_REMEASURE = "delete it to measure again"
_RESTORE = "restore it, or move the run away to train it again"
# copies by notebooks, by archives of a Mac, and by network drives; files of drives and managers
_HIDDEN = re.compile(
    r"(?i)(^|/)(\.|__MACOSX|@eaDir|\$RECYCLE|System Volume|lost\+found|@Recently-Snapshot|"
    r"([@#]recycle|#snapshot|@tmp)(/|$)|((eh)?thumbs\.db|desktop\.ini)$)"
)
T = TypeVar("T")


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], None]) -> None:
    """Write a whole file or nothing; a callable writes what is too large for memory."""
    if isinstance(content, str):
        content = content.encode(errors="surrogateescape")  # names of files may be any bytes
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


def is_hidden(path: str) -> bool:
    """Return whether a name, or a folder of a relative path, was added by a system."""
    return _HIDDEN.search(path) is not None


def list_visible_folders(folder: Path | str) -> list[str]:
    """List the folders in a folder by name, without links to a folder above it."""
    above = f"{os.path.realpath(folder)}/"
    found = (x for x in os.scandir(folder) if x.is_dir() and not is_hidden(x.name))
    return sorted(x.name for x in found if not above.startswith(f"{os.path.realpath(x.path)}/"))


def walk_folder(folder: Path) -> Iterator[Path]:
    """Yield the visible files below a folder; those of each folder come before its folders."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = list_visible_folders(place)
        yield from (Path(place, name) for name in sorted(names) if not is_hidden(name))


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


def read_mapping(
    path: Path, remedy: str, parse: Callable[[str], Any] = json.loads
) -> dict[str, Any] | None:
    """Return the mapping in a file, JSON by default; None if there is no file."""
    content = _read_file(path, remedy, parse)
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a mapping: {remedy}")
    return content


def _read_file(path: Path, remedy: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = shorten_text(str(error), 100)
        raise UserError(f"{path} cannot be read ({reason}): {remedy}") from error


def read_result(folder: Path, **expected: str) -> dict[str, Any] | None:
    """Return the result in the folder of a run; None if the run has not finished.

    Raises UserError, with the remedy, for a result that is damaged, was edited, or is of another
    run than the folder's or the expected one. A metric may be NaN or infinite: training diverges.
    """
    path = folder / "result.json"
    content = read_mapping(path, _RESCORE)
    if content is None:
        return None
    known: dict[str, Any] = dict(expected)
    if name := parse_folder(folder.absolute()):
        known |= {"seed": name.seed, "hash": name.hash}
    if content.pop("digest", None) not in (None, compute_digest(content)):  # old ones have none
        raise UserError(f"{path} was changed after the run had written it: {_RESCORE}")
    for key, value in known.items():
        if (found := content.get(key)) != value:
            raise UserError(f"{path} is of another run: {key} {found!r}, not {value!r}: {_RESCORE}")
    return content


def read_report(folder: Path, source: str, **expected: str) -> dict[str, Any] | None:
    """Return `<source>.json`, a measurement; None if there is none. Raises as `read_result`."""
    if source == "result":
        return read_result(folder, **expected)
    path = folder / f"{source}.json"
    content = read_mapping(path, _REMEASURE)
    if content is not None and not isinstance(content.get("metrics"), dict):
        raise UserError(f"{path} has no mapping metrics: {_REMEASURE}")
    return content


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the config of a run; None if there is none. UserError if it is damaged."""
    return read_mapping(path, _RESTORE, yaml.safe_load)


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the environment of each start of a run; UserError if they cannot be read."""
    return _read_file(folder / "environment.yaml", "delete it", yaml.safe_load) or []


def compute_digest(result: Mapping[str, Any]) -> str:
    """Return 16 hex digits over all of a result but its digest."""
    rest = {key: value for key, value in result.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


class FolderName(NamedTuple):
    """Names of a run in its path; "" where the path lacks its parents."""

    app: str
    data: str
    backbone: str
    method: str
    seed: int
    hash: str


def parse_folder(folder: Path) -> FolderName | None:
    """Return the names in `<app>/<data>-<backbone>/<method>/seed-<n>-<hash>`, or None."""
    named = re.fullmatch(r"seed-(\d+)-([0-9a-f]{10})", folder.name)
    if named is None:
        return None
    app, setting, method = ("", "", "", *folder.parts[:-1])[-3:]
    data, _, backbone = setting.partition("-")
    return FolderName(app, data, backbone, method, int(named[1]), named[2])


def is_number(value: Any) -> TypeGuard[float]:
    """Return True for an int or a float, which may be NaN or infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Return True for a number that is neither NaN nor beyond float32."""
    return is_number(value) and abs(value) <= MAX_VALUE


def try_read(read: Callable[..., T], *args: Any, **options: Any) -> T | None:
    """Return what `read` returns; where it raises UserError, warn once, and return None."""
    try:
        return read(*args, **options)
    except UserError as error:
        warn_once(str(error))
        return None


@cache
def warn_once(text: str) -> None:
    """Print a warning of one line, unless this process has printed it before."""
    print(f"warning: {text}", file=sys.stderr)


def load_torch_file(path: Path | str) -> Any:
    """Load a file of torch as data, with its checksums; a damaged one raises any error."""
    if zipfile.is_zipfile(path) and (part := zipfile.ZipFile(path).testzip()):
        raise ValueError(f"{part} in it is damaged")
    return torch.load(path, map_location="cpu", weights_only=True)


def is_whole_checkpoint(path: Path, resumable: bool = False) -> bool:
    """Return True for a checkpoint that can be read to its end; to resume, also without nan."""
    try:
        found = load_torch_file(path)
        states = {"loops", "callbacks", "optimizer_states", "lr_schedulers"} if resumable else set()
        weights = found["state_dict"].values() if resumable else ()
        is_lost = any(x.isnan().any() for x in weights if isinstance(x, torch.Tensor))
        return found.keys() >= {"state_dict", *states} and not is_lost
    except Exception:  # a damaged archive can raise anything
        return False


def load_state(model: Any, path: Path) -> None:
    """Load the weights of a checkpoint; UserError where they are of another model."""
    weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    with convert_user_errors(RuntimeError, TypeError, prefix=f"{path} is of another model: "):
        model.load_state_dict(weights)


def parse_step(path: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(path.stem.partition("=")[2])
