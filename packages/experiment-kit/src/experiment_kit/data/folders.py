"""Files and folders of people, and the identity of data.

`data.json` in the folder of a run records its data at its start. It is no part of the config's
hash, as a run may move to another machine before its data is there.
"""

import hashlib
import heapq
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping

MAX_FILES = 1000  # whose content identifies a run's data; all are counted
_SAMPLE = 1 << 20  # bytes at both ends of a file that identify it
# copies by notebooks, by archives of a Mac, and by network drives; files of drives and managers
_HIDDEN = re.compile(
    r"(?i)(^|/)(\.|__MACOSX|@eaDir|\$RECYCLE|System Volume|lost\+found|"
    r"((eh)?thumbs\.db|desktop\.ini)$)"
)


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
        digest.update(content.read(_SAMPLE))
        content.seek(max(0, size - _SAMPLE))
        digest.update(content.read(_SAMPLE))
    return digest.hexdigest()[:16]
