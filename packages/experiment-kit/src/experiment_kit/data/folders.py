"""Folders of data: the visible files of people, and caches that are made of them."""

import json
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from experiment_kit.run_files import has_content, walk_folder, write_atomically, write_folder_once

MANIFEST = "manifest.json"  # the size and the CRC-32 of each file, by its name
_BLOCK = 1 << 24  # bytes that are read at once


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


def list_visible_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files below a folder whose names end in a suffix, in the order of names."""
    found = (path for path in walk_folder(folder) if path.name.lower().endswith(suffixes))
    return sorted(path for path in found if path.is_file())
