"""The identity of a run's data: the names, sizes and content of its files.

`data.json` in the folder of a run records them at its start. They are no part of the config's hash,
as a run may move to another machine before its data is there.
"""

import hashlib
import heapq
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from experiment_kit.errors import UserError
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping

MAX_FILES = 1000  # whose content is read; all are counted
MAX_BYTES = 2**28  # beyond this, only each file's first and last block are read
_BLOCK = 2**16
_REMEDY = "restore it, or move the folder of the run away to train it anew"


class DataFile(NamedTuple):
    """A file by its name within the data set, with its size."""

    name: str
    size: int
    path: str


def record_data(run: Run, paths: Sequence[Path]) -> None:
    """Record the data of a run when it starts; a run with checkpoints must have the same data.

    A new date or another place of the same content is accepted. Raises UserError, which names the
    file.
    """
    found = describe_data(paths)
    if run.find_latest_step() is not None and (change := diff_data(run, found)):
        raise UserError(f"{run.folder} cannot resume: {change} since it started: {_REMEDY}")
    found["paths"] = [str(path.absolute()) for path in paths]
    write_atomically(run.folder / "data.json", json.dumps(found) + "\n")


def explain_changed_data(run: Run) -> str:
    """Return how the data of a finished run changed since, to end a sentence about the run.

    "" stands for no change, and for data that is not where it was, or not readable.
    """
    with suppress(UserError, OSError, TypeError):
        known = read_mapping(run.folder / "data.json", "") or {}
        paths = [Path(path) for path in known.get("paths", [])]
        if paths and all(path.exists() for path in paths):
            change = diff_data(run, describe_data(paths))
            return f", but {change} since it started" if change else ""
    return ""


def diff_data(run: Run, found: Mapping[str, Any]) -> str:
    """Return how the data differs from the recorded one, as a sentence; "" if it does not."""
    path = run.folder / "data.json"
    remedy = "delete it if the data is still that of the run"
    if (known := read_mapping(path, remedy)) is None:  # a run before there were records
        return ""
    before, after = known.get("content"), found["content"]
    totals = ("files", "bytes", "names")
    if not isinstance(before, dict) or not {*totals} <= {*known}:
        raise UserError(f"{path} does not describe data: {remedy}")
    if changed := [name for name in before if after.get(name, before[name]) != before[name]]:
        return f"{changed[0]} has changed"
    if all(known[key] == found[key] for key in totals):
        return ""
    if other := sorted(before.keys() ^ after.keys()):
        return f"{other[0]} was added or removed"
    return "files have other names or sizes"


def describe_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe files and folders: number, bytes and names of all, the content of a sample."""
    files, names = list(list_files(paths)), hashlib.sha256()
    for file in files:
        names.update(os.fsencode(f"{file.name}\0{file.size}\0"))
    sample = heapq.nsmallest(MAX_FILES, files, lambda file: zlib.crc32(os.fsencode(file.name)))
    whole = sum(file.size for file in sample) <= MAX_BYTES
    content = {file.name: hash_content(file, whole) for file in sample}
    size = sum(file.size for file in files)
    return {"files": len(files), "bytes": size, "names": names.hexdigest(), "content": content}


def list_files(paths: Sequence[Path]) -> Iterator[DataFile]:
    """Yield the files, and those within the folders, in an order that does not change.

    Hidden ones are left out.
    """
    top = Path(os.path.commonpath(paths)) if paths else Path()
    top = top.parent if top.is_file() else top
    for path in sorted(paths):
        found = [path]
        for folder, folders, names in os.walk(path, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        for file in found:
            if file.is_file():
                yield DataFile(os.path.relpath(file, top), file.stat().st_size, str(file))


def hash_content(file: DataFile, whole: bool) -> str:
    """Return 16 hex digits over the size of a file and its content, or its first and last block."""
    digest = hashlib.sha256(f"{file.size}".encode())
    with open(file.path, "rb") as content:
        if not whole:
            digest.update(content.read(_BLOCK))
            content.seek(max(0, file.size - _BLOCK))
        while block := content.read(_BLOCK * 16):
            digest.update(block)
    return digest.hexdigest()[:16]
