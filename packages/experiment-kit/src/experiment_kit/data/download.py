"""Downloads that are checked, resumed and atomic; archives that are safe to unpack."""

import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, Any, NamedTuple

import pooch
import requests
from requests import RequestException, Timeout
from requests.exceptions import ChunkedEncodingError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from experiment_kit.errors import UserError
from experiment_kit.run import hold_lock, write_folder_atomically

TIMEOUT = 30  # seconds without a byte
# RuntimeError is zipfile's: an encrypted member, or a compression that Python lacks
_UNREADABLE = (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
               lzma.LZMAError)  # fmt: skip


@dataclass(frozen=True)
class Download:
    """A file of a data set, or an archive that becomes a folder.

    `path` is the file or the folder in DATA_DIR. `inside` is the folder of the archive that
    becomes `path`, "" for all of its content; None means that the file is no archive. Without
    `sha256`, the first download records it.
    """

    url: str
    path: str
    inside: str | None = None
    sha256: str | None = None


def download_dataset(downloads: Iterable[Download], root: Path) -> list[Path]:
    """Fetch the files of a data set in order, unpack its archives, and return their paths.

    Existing files are checked, existing folders are kept. Raises UserError as `fetch_file` and
    `extract_archive` do.
    """
    paths = []
    for download in downloads:
        path = root / download.path
        if download.inside is None:
            fetch_file(download.url, path, download.sha256)
        elif not (path.is_dir() and any(path.iterdir())):
            name = download.url.rpartition("/")[2].partition("?")[0]
            archive = fetch_file(download.url, root / name, download.sha256)
            extract_archive(archive, path, inside=download.inside)
        paths.append(path)
    return paths


def fetch_file(url: str, path: str | Path, sha256: str | None = None) -> Path:
    """Download a file once, and check it at each call; an existing file needs no network.

    A wrong hash is refused: a wrong download is removed, and a wrong existing file is renamed to
    ``<path>.bad``. Without a known hash, that of the first download is recorded in
    ``<path>.sha256``, also for ``sha256sum -c``, and required from then on. Raises UserError for
    a wrong hash or a failed download, and ValueError for another scheme than http.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, not {url!r}")
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}")
    path = Path(path).absolute()
    record = path.with_name(f"{path.name}.sha256")
    known = sha256 or _read_recorded_hash(record)
    accept = "pass its hash as sha256" if sha256 else f"delete {record}"
    if path.exists():
        _check_hash(path, known, accept, rename=sha256 is not None)
        return path
    with hold_lock(path.with_name(f"{path.name}.lock")):  # parallel runs share their data
        if not path.exists():
            _download_file(url, path, known, accept)
            if not known:
                record.write_text(f"{pooch.file_hash(str(path))}  {path.name}\n")
    return path


def _read_recorded_hash(record: Path) -> str | None:
    if not record.exists():
        return None
    if found := re.match("[0-9a-f]{64}", record.read_text()):
        return found[0]
    raise UserError(f"{record} does not begin with a sha256: delete it to record another")


def _check_hash(path: Path, known: str | None, accept: str, rename: bool) -> None:
    if known is None or (found := pooch.file_hash(str(path))) == known.lower():
        return
    moved = ""
    if rename:  # a recorded hash is only as good as the first download: keep its file
        moved = f" and was moved to {path.name}.bad"
        path.replace(f"{path}.bad")
    raise UserError(f"{path} has sha256 {found}, not {known}{moved}: {accept} to accept it")


def _download_file(url: str, path: Path, known: str | None, accept: str) -> None:
    resuming = _ResumingDownloader(path.with_name(f"{path.name}.part"), known)
    try:
        pooch.retrieve(url, known, path.name, path.parent, downloader=resuming)
    except RequestException as error:
        raise UserError(
            f"cannot download {path.name} from {url} ({_explain_failure(error)}): "
            f"try again, or put it at {path} by hand"
        ) from error
    except ValueError as error:  # pooch's error for a wrong hash; it has removed the file
        found = re.findall("[0-9a-f]{64}", str(error))[-1]
        raise UserError(
            f"{url} has sha256 {found}, not {known}, and was removed: {accept} to accept it"
        ) from error


def _explain_failure(error: RequestException) -> str:
    if error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, Timeout):
        return f"no answer in {TIMEOUT} s"
    broke_off = isinstance(error, ChunkedEncodingError)
    return "the connection broke off" if broke_off else "no connection"


class _ResumingDownloader:
    """Downloader for pooch, which has none that resumes a part of this or an earlier call."""

    def __init__(self, part: Path, known: str | None) -> None:
        self.part, self.known = part, known
        self.version = part.with_name(f"{part.name}.version")  # ETag or date of the server's file

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        size = self._get_size()
        while True:
            try:
                self._request_rest(url)
                break
            except (ChunkedEncodingError, requests.ConnectionError, Timeout):
                if self._get_size() <= size:
                    raise
                size = self._get_size()
        os.replace(self.part, output_file)
        self.version.unlink(missing_ok=True)

    def _get_size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _request_rest(self, url: str) -> None:
        size = self._get_size()
        headers = {"Accept-Encoding": "identity"}  # else sizes are those of the compressed answer
        version = self.version.read_text() if self.version.exists() else ""
        if size and (version or self.known):
            headers["Range"] = f"bytes={size}-"
            if version:
                headers["If-Range"] = version
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            place = answer.headers.get("Content-Range", "")
            if place == f"bytes */{size}":
                return  # 416: nothing is missing
            misplaced = place and not place.startswith(f"bytes {size}-")
            if size and (misplaced or answer.status_code == 416):
                self.part.unlink()
                return self._request_rest(url)
            answer.raise_for_status()
            self._append_answer(answer, size if answer.status_code == 206 else 0)

    def _append_answer(self, answer: requests.Response, start: int) -> None:
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        self.version.write_text(tag)
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        answer.raw.enforce_content_length = False  # it would drop the last bytes before a break
        mode = "ab" if start else "wb"
        with self.part.open(mode) as file, _show_progress(file.name, start, total) as bar:
            for chunk in answer.iter_content(1 << 16):
                bar.update(bar.task_ids[0], advance=file.write(chunk))
        if total not in (None, self._get_size()):
            raise ChunkedEncodingError(f"{self._get_size()} of {total} bytes")


@contextmanager
def _show_progress(name: str, start: int, total: int | None) -> Iterator[Progress]:
    console = Console(stderr=True)
    title = TextColumn("{task.description}", markup=False)
    columns = (title, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        progress.add_task(Path(name).stem, completed=start, total=total)
        yield progress


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
    """Unpack a zip or tar file of any compression into a folder, atomically.

    With `inside`, that folder of the archive becomes the folder, and the rest is dropped. A folder
    that is not empty is taken for the archive's content and returned as it is. The limits count
    the bytes that are written, since sizes in headers may lie. Raises UserError that names a
    member which leaves the folder, is a link or a device, or exceeds a limit.
    """
    archive, directory = Path(archive), Path(directory).absolute()
    if directory.is_dir() and any(directory.iterdir()):
        return directory
    with write_folder_atomically(directory) as folder:
        root = folder / ".unpacked" if inside else folder
        try:
            _write_members(archive, root, max_bytes, max_files)
        except _UNREADABLE as error:
            raise UserError(f"{archive} cannot be read: {error}") from error
        if inside:
            if not (root / inside).is_dir():
                raise UserError(f"{archive} has no folder {inside}: it is another archive")
            for path in (root / inside).iterdir():
                path.rename(folder / path.name)
            shutil.rmtree(root)
    return directory


def _write_members(archive: Path, root: Path, max_bytes: int, max_files: int) -> None:
    left = max_bytes
    for count, member in enumerate(_list_members(archive), start=1):
        where = f"{archive}: {member.name!r}"
        if count > max_files:
            raise UserError(f"{where} is one more than the {max_files} members that are allowed")
        path = PureWindowsPath(member.name)  # knows both slashes, and drives
        if path.anchor or ".." in path.parts or "\0" in member.name:
            raise UserError(f"{where} would be written outside of the folder")
        # tarfile's filter="data" allows links inside of the folder, and could be led outside
        # through them until Python 3.11.13 (CVE-2025-4517). Data sets have none: refuse all.
        if not (member.is_folder or member.is_file):
            raise UserError(
                f"{where} is a link or a device, and only files and folders are allowed"
            )
        try:
            left -= _write_member(member, root / member.name, left)
        except OSError as error:
            raise UserError(f"{where} cannot be unpacked: {error}") from error
        if left < 0:
            raise UserError(f"{where} exceeds the {max_bytes} bytes that are allowed")


def _write_member(member: _Member, target: Path, limit: int) -> int:
    """Write a member, at most a block beyond the limit, and return the number of bytes."""
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


def _list_members(archive: Path) -> Iterator[_Member]:
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
            folder = entry.filename.endswith("/")  # zipfile's is_dir fails on an empty name
            regular = kind in (0, 0o10) and not folder
            yield _Member(entry.filename, folder, regular, partial(file.open, entry))
