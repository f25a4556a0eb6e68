"""The identity of a run's data: the names, sizes and content of its files.

`data.json` in the folder of a run records them at its start. They are no part of the config's hash,
as a run may move to another machine before its data is there.
"""

import hashlib
import heapq
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping

MAX_FILES = 1000  # whose content is read; all are counted
_BLOCK = 2**20


def record_data(run: Run, paths: Sequence[Path]) -> None:
    """Record the data of a run; raise UserError if a run with checkpoints had other data.

    A new date or another place of the same content is accepted.
    """
    found = describe_data(paths)
    if run.find_latest_step() is not None and (change := diff_data(run, found)):
        raise UserError(
            f"{run.folder} cannot resume: {change} since it started: restore it, or move the"
            " folder of the run away to train it anew"
        )
    found["paths"] = [str(path.absolute()) for path in paths]
    write_atomically(run.folder / "data.json", json.dumps(found) + "\n")


def explain_changed_data(run: Run) -> str:
    """Return how the data of a finished run changed since, to end a sentence about the run.

    "" stands for no change, and for data that is not where it was, or not readable.
    """
    with suppress(UserError, OSError):
        known = read_mapping(run.folder / "data.json", "") or {}
        paths = [Path(path) for path in known.get("paths", [])]
        if paths and all(path.exists() for path in paths):
            change = diff_data(run, describe_data(paths))
            return f", but {change} since it started" if change else ""
    return ""


def diff_data(run: Run, found: Mapping[str, Any]) -> str:
    """Return how the data differs from the recorded one, as a sentence; "" if it does not."""
    remedy = "delete it if the data is still that of the run"
    known = read_mapping(run.folder / "data.json", remedy)
    if known is None:  # a run from before there were records
        return ""
    before, after = known["content"], found["content"]
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            is_in_both = name in before and name in after
            return f"{name} {'has changed' if is_in_both else 'was added or removed'}"
    return "" if known["names"] == found["names"] else "files have other names or sizes"


def describe_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe files and folders: number, bytes and names of all, the content of a sample."""
    files, names = list_files(paths), hashlib.sha256()
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name, size in sizes.items():
        names.update(os.fsencode(f"{name}\0{size}\0"))
    sample = heapq.nsmallest(MAX_FILES, files, lambda name: zlib.crc32(os.fsencode(name)))
    content = {name: _hash_content(files[name], sizes[name]) for name in sample}
    totals = {"files": len(files), "bytes": sum(sizes.values()), "names": names.hexdigest()}
    return {**totals, "content": content}


def list_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files, and those within the folders, by their names; hidden ones are left out."""
    top = Path(os.path.commonpath(paths)) if paths else Path()
    top = top.parent if top.is_file() else top
    found = []
    for path in sorted(paths):
        found.append(path)
        for folder, folders, names in os.walk(path, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return {os.path.relpath(file, top): file for file in found if file.is_file()}


def _hash_content(path: Path, size: int) -> str:
    """Return 16 hex digits over the size of a file, and its first and last block."""
    digest = hashlib.sha256(f"{size}".encode())
    with path.open("rb") as content:
        digest.update(content.read(_BLOCK))
        content.seek(max(0, size - _BLOCK))
        digest.update(content.read(_BLOCK))
    return digest.hexdigest()[:16]
