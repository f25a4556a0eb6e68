"""Files and folders: those of people, caches that are made of them, and the identity of data.

`data.json` in the folder of a run records its data at its start. It is no part of the config's
hash, as a run may move to another machine before its data is there.
"""

import hashlib
import heapq
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.run import Run, has_content, write_atomically, write_folder_once
from experiment_kit.run_files import read_mapping

MANIFEST = "manifest.json"  # the size and the CRC-32 of each file, by its name
MAX_FILES = 1000  # whose content identifies a run's data; all are counted
_BLOCK = 1 << 24  # bytes that are read at once
_SAMPLE = 1 << 20  # bytes at both ends of a file that identify it
# copies by notebooks, by archives of a Mac, and by network drives; files of drives and managers
_HIDDEN = re.compile(
    r"(?i)(^|/)(\.|__MACOSX|@eaDir|\$RECYCLE|System Volume|lost\+found|"
    r"((eh)?thumbs\.db|desktop\.ini)$)"
)


def make_cache(folder: Path, write: Callable[[Path], object]) -> Path:
    """Return a folder that `write` fills; fill it anew, with a warning, where a file differs."""

    def write_all(new: Path) -> None:
        if has_content(folder):
            why = f"{find_damaged(folder)[0]} is missing or not as it was written"
            print(f"warning: {folder} is made anew: {why}", file=sys.stderr)
        write(new)
        files = [path for path in sorted(new.rglob("*")) if path.is_file()]
        content = {path.relative_to(new).as_posix(): _identify_file(path) for path in files}
        write_atomically(new / MANIFEST, json.dumps(content, indent=1) + "\n")

    write_folder_once(folder, write_all, lambda path: not find_damaged(path))
    return folder


def find_damaged(folder: Path) -> list[str]:
    """Return the files that are missing or differ; the manifest, where it cannot be read."""
    with suppress(OSError, ValueError, AttributeError):
        known = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return [name for name, value in known.items() if _identify_file(folder / name) != value]
    return [MANIFEST]


def _identify_file(path: Path) -> list[int] | None:
    if not path.is_file():
        return None
    stat = path.stat()
    return [stat.st_size, _hash_file(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)]


@cache  # a process reads a file once while these numbers stay
def _hash_file(path: Path, size: int, date: int, number: int) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def is_hidden(path: str) -> bool:
    """Return whether a name, or a folder of a relative path, was added by a system."""
    return _HIDDEN.search(path) is not None


def list_visible_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files below a folder whose names end in a suffix, in the order of names."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = list_visible_folders(place)
        found += [Path(place, name) for name in names if not is_hidden(name)]
    return sorted(x for x in found if x.name.lower().endswith(suffixes) and x.is_file())


def list_visible_folders(folder: Path | str) -> list[str]:
    """List the folders in a folder by name, without links to one above, as `ln -s` twice makes."""
    above = f"{os.path.realpath(folder)}/"
    found = (x for x in os.scandir(folder) if x.is_dir() and not is_hidden(x.name))
    return sorted(x.name for x in found if not above.startswith(f"{os.path.realpath(x.path)}/"))


def record_data(run: Run, paths: Sequence[Path]) -> None:
    """Record the data of a run; raise UserError if a run with checkpoints had other data."""
    found = describe_data(paths)
    if run.find_latest_step() is not None and (change := diff_data(run, found)):
        raise UserError(
            f"{run.folder} cannot resume: {change} since it started: restore it, or move the"
            " folder of the run away to train it anew"
        )
    write_atomically(run.folder / "data.json", json.dumps(found) + "\n")


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
    top = Path(os.path.commonpath(paths)) if paths else Path()
    top = top.parent if top.is_file() else top
    found = []
    for path in sorted(paths):
        found.append(path)
        for folder, folders, names in os.walk(path, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return {os.path.relpath(file, top): file for file in found if file.is_file()}
