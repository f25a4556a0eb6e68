"""Archives that are read to their last byte and safe to unpack: zip, and tar of any compression."""

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple, Self

from experiment_kit.errors import UserError
from experiment_kit.run import has_content, write_folder_once

MAX_BYTES = 1 << 32  # of the content of an archive, unless its data set says another number
MAX_FILES = 2_000_000
_MAX_HEADER = 1 << 16  # bytes of a name or of pax attributes, which tarfile reads into memory
_EXTENDED_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_MAX_ZIP_VERSION = 63  # zipfile reads what version 6.3 of the format describes
_NOT_WHOLE = "it is neither a zip nor a whole tar file"
_UTF8_NAME = 0x800  # flag of a zip's member
_COMPRESSIONS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (rb"\x1f\x8b\x08", gzip.open),
    (rb"BZh[1-9]1AY&SY", bz2.open),
    (rb"\xfd7zXZ\x00|\x5d\x00\x00\x80", lzma.open),
)


class _Member(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes]]


def extract_archive(
    archive: str | Path,
    directory: str | Path,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    inside: str = "",
) -> Path:
    """Unpack an archive into a folder, whole or not at all.

    With `inside`, that folder of the archive becomes the folder, and the rest is dropped. A folder
    that is not empty is taken for the archive's content and returned as it is. The limits count
    the bytes that are written, since sizes in headers may lie. Raises UserError for an archive
    that is damaged, cut or empty, and for a member that leaves the folder, is a link or a device,
    or exceeds a limit.
    """
    archive = Path(archive)

    def write_content(folder: Path) -> None:
        root = folder / ".unpacked" if inside else folder
        _read_members(archive, root, max_bytes, max_files, inside)
        if inside:
            if not has_content(root / inside):
                raise UserError(f"{archive} has no folder {inside}: it is another archive")
            for path in (root / inside).iterdir():
                path.rename(folder / path.name)
            shutil.rmtree(root)

    return write_folder_once(Path(directory), write_content)


def check_archive(archive: Path, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """Read an archive to its last byte; raises UserError where extract_archive would."""
    _read_members(archive, None, max_bytes, max_files)


def _read_members(
    archive: Path, root: Path | None, max_bytes: int, max_files: int, inside: str = ""
) -> None:
    if not archive.is_file():  # opening a FIFO would wait for ever
        raise UserError(f"{archive} is not a regular file")
    left, count = max_bytes, 0
    try:
        for count, member in enumerate(_list_members(archive, max_bytes), start=1):
            where = f"{archive}: {member.name!r}"
            if count > max_files:
                raise UserError(f"{where} is one more than the {max_files} members allowed")
            _check_member(member, where)
            kept = root and PurePosixPath(member.name).is_relative_to(inside)
            try:
                left -= _copy_member(member, root / member.name if root and kept else None, left)
            except OSError as error:
                raise UserError(f"{where} cannot be unpacked: {error}") from error
            if left < 0:
                raise UserError(f"{where} exceeds the {max_bytes} bytes that are allowed")
    except UserError:
        raise
    except Exception as error:  # whatever a damaged archive makes a reader raise
        raise UserError(f"{archive} cannot be read: {error}") from error
    if not count:
        raise UserError(f"{archive} is an empty archive")


def _check_member(member: _Member, where: str) -> None:
    path = PureWindowsPath(member.name)  # knows both slashes, and drives
    if path.anchor or ".." in path.parts or "\0" in member.name:
        raise UserError(f"{where} would be written outside of the folder")
    # tarfile's filter="data" allows links inside of the folder, and could be led outside
    # through them until Python 3.11.13 (CVE-2025-4517). Data sets have none: refuse all.
    if not (member.is_folder or member.is_file):
        raise UserError(f"{where} is a link or a device, and only files and folders are allowed")


def _copy_member(member: _Member, target: Path | None, limit: int) -> int:
    """Write a member, at most a block beyond the limit, and return the number of bytes.

    A member without target is read alone, and so is a folder, which has no content in a good zip.
    """
    if target is not None:
        (target if member.is_folder else target.parent).mkdir(parents=True, exist_ok=True)
    written = 0
    where = os.devnull if target is None or member.is_folder else target
    with member.open() as source, open(where, "wb") as file:
        while written <= limit and (block := source.read(1 << 20)):
            written += file.write(block)
    return written


def _list_members(archive: Path, max_bytes: int) -> Iterator[_Member]:
    """Yield the members by the archive's first bytes: a tar may end in a zip file.

    A tar's content must end with two blocks of zeros, and nothing but zeros may follow them. What
    follows the last whole stream of bz2 or xz is not looked at; behind gzip it is an error.
    """
    with archive.open("rb") as file:
        start = file.read(10)
    if start.startswith(b"PK"):
        yield from _list_zip(archive)
        return
    openers = (opener for magic, opener in _COMPRESSIONS if re.match(magic, start))
    opener: Callable[..., Any] = next(openers, open)
    with opener(archive, "rb") as stream:
        yield from _list_tar(tarfile.TarFile(fileobj=stream, tarinfo=_TarHeader))
        _check_end(stream, max_bytes)


class _TarHeader(tarfile.TarInfo):
    """A header of a tar; a cut or damaged one is an error, for tarfile the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if buf.count(0) == tarfile.BLOCKSIZE:
            return super().frombuf(buf, encoding, errors)  # raises its error for the end
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(_NOT_WHOLE) from error
        if header.size < 0:
            raise tarfile.ReadError(f"{header.name!r} has a negative size")
        if header.type in _EXTENDED_HEADERS and header.size > _MAX_HEADER:
            raise tarfile.ReadError(f"{header.name!r} has a header of {header.size} bytes")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{header.name!r} is a sparse file")
        return header


def _list_tar(tar: tarfile.TarFile) -> Iterator[_Member]:
    for info in tar:
        size = info.pax_headers.get("size", str(info.size))
        if info.size < 0 or size != str(info.size):  # tarfile takes a wrong number for 0
            raise tarfile.ReadError(f"{info.name!r} has the size {size[:40]}")

        def open_member(info: tarfile.TarInfo = info) -> IO[bytes]:
            return tar.extractfile(info) or io.BytesIO()

        yield _Member(info.name, info.isdir(), info.isreg() and not info.issparse(), open_member)


def _check_end(stream: IO[bytes], max_bytes: int) -> None:
    """Check that zeros follow a tar's first final block, up to the end of the file."""
    length = 0
    while block := stream.read(1 << 20):
        length += len(block)
        if block.count(0) < len(block) or length > max_bytes + tarfile.RECORDSIZE:
            raise tarfile.ReadError("something follows its end")
    if length < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(_NOT_WHOLE)


def _list_zip(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file, archive.open("rb") as raw:
        entries = file.infolist()
        if min((entry.header_offset for entry in entries), default=0):  # also of a zip in a cut zip
            raise zipfile.BadZipFile("it does not begin with its first member")
        # zipfile loses the members behind one whose list of attributes has a wrong length
        if len(entries) != _read_zip_count(raw, len(file.comment)):
            raise zipfile.BadZipFile("its members are not as many as its end says")
        for entry in entries:
            raw.seek(entry.header_offset)
            _, version, flags = struct.unpack("<4sHH", raw.read(8))
            if max(version, entry.extract_version | entry.reserved << 8) > _MAX_ZIP_VERSION:
                raise zipfile.BadZipFile(f"{entry.filename!r} needs a newer version of zip")
            if (flags ^ entry.flag_bits) & _UTF8_NAME:  # zipfile looks at one of the two flags
                raise zipfile.BadZipFile(f"{entry.filename!r} is a name in two encodings")
            kind = entry.external_attr >> 28  # of the Unix mode; 0 if made elsewhere
            folder = entry.filename.endswith("/")  # zipfile's is_dir fails on an empty name

            def open_member(entry: zipfile.ZipInfo = entry) -> IO[bytes]:
                return file.open(entry)

            yield _Member(entry.filename, folder, kind in (0, 0o10) and not folder, open_member)


def _read_zip_count(raw: IO[bytes], comment: int) -> int:
    """Read the number of members from the record that ends a zip, or from its 64-bit twin."""
    end = raw.seek(-22 - comment, os.SEEK_END)
    signature, count = struct.unpack("<4s6xH", raw.read(12))
    if signature != b"PK\x05\x06":
        raise zipfile.BadZipFile("something follows its end")
    if count == 0xFFFF and end >= 76:
        raw.seek(end - 76)
        signature, large = struct.unpack("<4s28xQ", raw.read(40))
        return int(large) if signature == b"PK\x06\x06" else count
    return int(count)
