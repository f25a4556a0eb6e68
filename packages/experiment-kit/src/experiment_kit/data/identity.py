"""The identity of a run's data: the names, sizes and sampled content of its files.

`data.json` in the folder of a run records them at its start. They are no part of the config's hash,
as a run may move to another machine before its data is there.
"""

import hashlib
import heapq
import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from experiment_kit.errors import UserError
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping

MAX_FILES = 1000  # whose content is read; all are counted
MAX_BYTES = 2**28  # that are read of all of them
_BLOCK = 2**16
_REMEDY = "restore it, or move the folder of the run away to train it anew"


class DataFile(NamedTuple):
    """A file by its name within the data set, with its size, and when it was modified."""

    name: str
    size: int
    modified_ns: int
    path: str


def record_data(run: Run, paths: Sequence[Path]) -> None:
    """Record the data of a run that starts; refuse other data than that of its checkpoints.

    A new date or another place of the same content is accepted. Raises UserError, which names the
    file.
    """
    found = describe_data(paths)
    if run.find_latest_step() is not None and (change := find_change(run, found)):
        raise UserError(f"{run.folder} cannot resume: {change} since it started: {_REMEDY}")
    found["paths"] = [str(path.absolute()) for path in paths]
    write_atomically(run.folder / "data.json", json.dumps(found) + "\n")


def describe_later_change(run: Run) -> str:
    """Return how the data of a finished run changed since, to end a sentence about the run.

    "" stands for no change, and for data that is not where it was, or not readable.
    """
    with suppress(UserError, OSError, TypeError):
        known = read_mapping(run.folder / "data.json", "") or {}
        paths = [Path(path) for path in known.get("paths", [])]
        if paths and all(path.exists() for path in paths):
            change = find_change(run, describe_data(paths))
            return f", but {change} since it started" if change else ""
    return ""


def find_change(run: Run, found: Mapping[str, Any]) -> str:
    """Return how the data differs from the recorded one, as a sentence; "" if it does not."""
    path = run.folder / "data.json"
    remedy = "delete it if the data is still that of the run"
    if (known := read_mapping(path, remedy)) is None:  # of a run before there were records
        return ""
    try:
        before, after = ({name: rest for name, *rest in d["sample"]} for d in (known, found))
        totals = [(d["files"], d["bytes"], d["names"]) for d in (known, found)]
        changed = [n for n in before if n in after and before[n][::2] != after[n][::2]]
        # another size first: it changes the part of the other files that is read
        changed.sort(key=lambda name: before[name][0] == after[name][0])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path} does not describe data: {remedy}") from error
    if changed:
        return f"{changed[0]} has changed"
    if totals[0] == totals[1]:
        return ""
    if other := sorted(before.keys() ^ after.keys()):
        return f"{other[0]} was added or removed"
    return "files have other names or sizes"


def describe_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe files and folders: number, bytes and names of all files, content of a sample.

    The sample depends on the names alone. A file is read whole, or at even distances if the sample
    has more than 256 MiB.
    """
    files, size, names = 0, 0, hashlib.sha256()

    def count(listed: Iterator[DataFile]) -> Iterator[DataFile]:
        nonlocal files, size
        for file in listed:
            files, size = files + 1, size + file.size
            names.update(os.fsencode(f"{file.name}\0{file.size}\0"))
            yield file

    sample = heapq.nsmallest(MAX_FILES, count(list_files(paths)), key=_rank)
    whole = sum(file.size for file in sample) <= MAX_BYTES
    share = MAX_BYTES if whole else MAX_BYTES // len(sample)
    content = [(f.name, f.size, f.modified_ns, hash_content(f, share)) for f in sample]
    return {"files": files, "bytes": size, "names": names.hexdigest(), "sample": content}


def _rank(file: DataFile) -> tuple[int, str]:
    return zlib.crc32(os.fsencode(file.name)), file.name


def list_files(paths: Sequence[Path]) -> Iterator[DataFile]:
    """Yield the files, and those within the folders, in an order that does not change.

    Hidden ones are left out.
    """
    if not paths:
        return
    top = os.path.commonpath(paths)
    if os.path.isfile(top):
        top = os.path.dirname(top)
    for path in sorted(paths):
        entered: set[tuple[int, int]] = set()  # links may be circular
        for folder, folders, files in os.walk(path, followlinks=True):
            status = os.stat(folder)
            inode = status.st_dev, status.st_ino
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if inode in entered:
                folders.clear()
                continue
            entered.add(inode)
            within = os.path.relpath(folder, top)
            for name in sorted(files):
                if not name.startswith("."):
                    yield from _describe_file(f"{folder}/{name}", f"{within}/{name}")
        yield from _describe_file(str(path), os.path.relpath(path, top))


def _describe_file(path: str, name: str) -> Iterator[DataFile]:
    try:
        status = os.stat(path)
    except OSError:  # a dangling link, of which the reader of the data decides
        return
    if stat.S_ISREG(status.st_mode):
        name = name.removeprefix("./")
        yield DataFile(name, status.st_size, status.st_mtime_ns, path)


def hash_content(file: DataFile, share: int) -> str:
    """Return 16 hex digits over a file, or over blocks of it that have `share` bytes."""
    digest = hashlib.sha256()
    with open(file.path, "rb") as content:
        if file.size <= share:
            while block := content.read(_BLOCK * 16):
                digest.update(block)
        else:
            count = max(2, share // _BLOCK)
            for number in range(count):
                content.seek((file.size - _BLOCK) * number // (count - 1))
                digest.update(content.read(_BLOCK))
    return digest.hexdigest()[:16]
