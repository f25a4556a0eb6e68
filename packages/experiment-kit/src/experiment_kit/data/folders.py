"""Folders of files: those of people, without what systems add, and those that are made of them."""

import json
import re
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from experiment_kit.run import has_content, write_atomically, write_folder_once

MANIFEST = "manifest.json"  # the size and the CRC-32 of each file, by its name
_BLOCK = 1 << 24  # bytes that are read at once
# copies by notebooks, by archives of a Mac, and by network drives; files of drives and managers
_HIDDEN = re.compile(
    r"(^|/)(\.|__MACOSX|@eaDir|\$RECYCLE|System Volume Information|lost\+found|"
    r"((eh)?thumbs\.db|desktop\.ini)$)",
    re.IGNORECASE,
)


def make_cache(folder: Path, write: Callable[[Path], object]) -> Path:
    """Return a folder that `write` fills, and fill it anew, with a warning, where a file differs.

    `write` gets a hidden folder that becomes `folder`, as in `write_folder_once`.
    """

    def write_all(new: Path) -> None:
        if has_content(folder):
            warn_damaged(folder, find_damaged(folder))
        write(new)
        write_manifest(new)

    write_folder_once(folder, write_all, lambda path: not find_damaged(path))
    return folder


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files below a folder, which are whole now."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in files if path.name != MANIFEST]
    content = {name: _identify_file(folder / name) for name in names}
    write_atomically(folder / MANIFEST, json.dumps(content, indent=1) + "\n")


def warn_damaged(folder: Path, names: list[str]) -> None:
    """Say on standard error that a folder is made anew, and name the first of its bad files."""
    why = "is missing or not as it was written"
    print(f"warning: {folder} is made anew: {names[0]} {why}", file=sys.stderr)


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
    """Return whether a name, or a folder of a relative path, was added by a system.

    >>> is_hidden("cat/.ipynb_checkpoints/1.jpg"), is_hidden("cat/Thumbs.db"), is_hidden("a.b/c.d")
    (True, True, False)
    """
    return _HIDDEN.search(path) is not None


def list_visible_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files below a folder whose names end in a suffix, in the order of names."""
    found = (path for path in sorted(folder.rglob("*")) if path.name.lower().endswith(suffixes))
    visible = (path for path in found if not is_hidden(str(path.relative_to(folder))))
    return [path for path in visible if path.is_file()]
