"""Unpacking archives of strangers: nothing outside of the folder, no bombs, never half done."""

import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, NamedTuple

from experiment_kit.errors import UserError

UNREADABLE = (
    OSError,
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,  # of zipfile: an encrypted member, or a compression that Python lacks
)


class _Member(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes] | None]


def extract_archive(
    archive: str | Path,
    directory: str | Path,
    max_bytes: int = 1 << 35,
    max_files: int = 2_000_000,
    inside: str = "",
) -> Path:
    """Unpack a zip or tar file, of any compression, into a folder that appears when it is whole.

    With `inside`, that folder of the archive becomes the folder, and the rest is dropped. A folder
    that holds anything is taken for the archive's content and returned as it is. The
    limits count the bytes that are written, since sizes in headers may lie. Raises a UserError
    that names the member which leaves the folder, is a link or a device, or exceeds a limit.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with zipfile.ZipFile(f"{folder}/a.zip", "w") as file:
    ...         file.writestr("x/y.txt", "hello")
    ...     (extract_archive(f"{folder}/a.zip", f"{folder}/a") / "x/y.txt").read_text()
    'hello'
    """
    archive, directory = Path(archive), Path(directory).absolute()
    if directory.is_dir() and any(directory.iterdir()):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{directory.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as scratch:
        root = Path(scratch) / directory.name
        root.mkdir()
        try:
            _write_all(archive, root, max_bytes, max_files)
        except UNREADABLE as error:
            raise UserError(f"{archive} cannot be read: {error}") from error
        if not (root / inside).is_dir():
            raise UserError(f"{archive} has no folder {inside}: it is another archive")
        _publish(root / inside, directory)
    return directory


def _publish(root: Path, directory: Path) -> None:
    try:
        root.rename(directory)
    except OSError:
        # another process was quicker, and its folder is as whole as ours
        if not (directory.is_dir() and any(directory.iterdir())):
            raise


def _write_all(archive: Path, root: Path, max_bytes: int, max_files: int) -> None:
    left = max_bytes
    for count, member in enumerate(_members(archive), start=1):
        where = f"{archive}: {member.name!r}"
        if count > max_files:
            raise UserError(f"{where} is one more than the {max_files} members that are allowed")
        _check_name(member, where)
        try:
            left -= _write(member, root / member.name, left)
        except OSError as error:
            raise UserError(f"{where} cannot be unpacked: {error}") from error
        if left < 0:
            raise UserError(f"{where} exceeds the {max_bytes} bytes that are allowed")


def _check_name(member: _Member, where: str) -> None:
    path = PureWindowsPath(member.name)  # knows both slashes, and drives
    if path.anchor or ".." in path.parts or "\0" in member.name:
        raise UserError(f"{where} would be written outside of the folder")
    # Links inside of the folder are refused too: tarfile's own filter="data" lets them pass, and
    # was led outside through them until Python 3.11.13 (CVE-2025-4517). Data sets have none.
    if not (member.is_folder or member.is_file):
        raise UserError(f"{where} is a link or a device, and only files and folders are allowed")


def _write(member: _Member, target: Path, limit: int) -> int:
    """Write a member, at most a block beyond the limit, and give the number of bytes."""
    if member.is_folder:
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    source = member.open()
    assert source is not None
    with source, target.open("wb") as file:
        while written <= limit and (block := source.read(1 << 20)):
            written += file.write(block)
    return written


def _members(archive: Path) -> Iterator[_Member]:
    # tar first: a tar that ends in a zip file looks like a zip, but not the other way round
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            for info in tar:
                open_ = partial(tar.extractfile, info)
                yield _Member(info.name, info.isdir(), info.isreg(), open_)
        return
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            kind = entry.external_attr >> 28  # of the Unix mode; 0 if made elsewhere
            folder = entry.filename.endswith("/")  # its own is_dir fails on an empty name
            regular = kind in (0, 0o10) and not folder
            yield _Member(entry.filename, folder, regular, partial(file.open, entry))


extract = extract_archive  # shim: issue 16, deleted at the end
