"""Downloads that are checked, resumed and atomic."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests import RequestException, Timeout
from requests.exceptions import ChunkedEncodingError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from urllib3.exceptions import HTTPError as Urllib3Error

from experiment_kit.data.archives import MAX_BYTES, MAX_FILES, check_archive, extract_archive
from experiment_kit.data.hub import HubFiles
from experiment_kit.errors import UserError
from experiment_kit.run import has_content, hold_lock, write_atomically

TIMEOUT = 30  # seconds without a byte
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Download:
    """A file of a data set, or an archive that becomes a folder.

    `path` is the file or the folder in DATA_DIR. `inside` is the folder of the archive that
    becomes `path`, "" for all of its content; None means that the file is no archive. Without
    `sha256`, the first download records it. `max_bytes`, about twice the true size of an archive's
    content, and `max_files` stop one that unpacks to more.
    """

    url: str
    path: str
    inside: str | None = None
    sha256: str | None = None
    max_bytes: int = MAX_BYTES
    max_files: int = MAX_FILES


# of a data set: files, files on the hub, how to get it by hand, or a function that draws it into a
# folder and returns its path
Source = Sequence[Download] | HubFiles | str | Callable[[Path], Path]


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
        elif not has_content(path):
            name = download.url.rpartition("/")[2].partition("?")[0]
            limits = download.max_bytes, download.max_files
            check = partial(check_archive, max_bytes=limits[0], max_files=limits[1])
            archive = fetch_file(download.url, root / name, download.sha256, check)
            extract_archive(archive, path, *limits, inside=download.inside)
        paths.append(path)
    return paths


def refuse_web_page(path: Path) -> None:
    """Raise UserError for an empty file and for HTML, which servers send in place of a file."""
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if not start:
        raise UserError(f"{path} is empty")
    if start.startswith((b"<!doctype html", b"<html")):
        raise UserError(f"{path} is a web page")


def fetch_file(
    url: str,
    path: str | Path,
    sha256: str | None = None,
    check: Callable[[Path], None] = refuse_web_page,
) -> Path:
    """Download a file once, and check it at each call; an existing file needs no network.

    A wrong hash is refused, and its file renamed to ``<path>.bad``. Without a known hash, a
    download over https that passes `check` is accepted. Its hash is printed, recorded in
    ``<path>.sha256``, also for ``sha256sum -c``, and required from then on. Raises UserError for a
    wrong hash, a failed check or a failed download, and ValueError for another scheme than http.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, not {url!r}")
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}")
    path = Path(path).absolute()
    record = path.with_name(f"{path.name}.sha256")
    known = (sha256 or _read_recorded_hash(record)).lower()
    accept = "pass its hash as sha256" if sha256 else f"delete {record}"
    if path.exists():
        _check_hash(path, known, accept, rename=sha256 is not None)
        return path
    with hold_lock(path.with_name(f"{path.name}.lock")):  # parallel runs share their data
        if not path.exists():
            found = _download_file(url, path, known, accept, check)
            if not known:
                write_atomically(record, f"{found}  {path.name}\n")
                print(f"{record} remembers sha256 {found}", file=sys.stderr)
    return path


def _read_recorded_hash(record: Path) -> str:
    if not record.exists():
        return ""
    if found := re.match(b"[0-9a-f]{64}", record.read_bytes()):
        return found[0].decode()
    raise UserError(f"{record} does not begin with a sha256: delete it to record another")


def _compute_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_hash(path: Path, known: str, accept: str, rename: bool) -> None:
    if not path.is_file():  # reading a FIFO would wait for ever
        raise UserError(f"{path} is not a regular file: remove it")
    if not known or (found := _compute_hash(path)) == known:
        return
    moved = ""
    if rename:  # a recorded hash is only as good as the first download: keep its file
        moved = f" and was moved to {path.name}.bad"
        path.replace(f"{path}.bad")
    raise UserError(f"{path} has sha256 {found}, not {known}{moved}: {accept} to accept it")


def _download_file(
    url: str, path: Path, known: str, accept: str, check: Callable[[Path], None]
) -> str:
    """Download and check a file, and return its hash; a file that fails is removed."""
    download = _ResumedDownload(url, path, known)
    print(f"downloading {url} to {path}", file=sys.stderr)
    try:
        download.fetch_part()
    # malformed headers make requests and urllib3 raise any ValueError
    except (RequestException, Urllib3Error, ValueError) as error:
        raise UserError(
            f"cannot download {path.name} from {url} ({_explain_failure(error)}): "
            f"try again, or put it at {path} by hand"
        ) from error
    try:
        found = _compute_hash(download.part)
        if known and found != known:
            download.part.replace(f"{path}.bad")
            raise UserError(
                f"{url} has sha256 {found}, not {known}, and was kept as {path.name}.bad: "
                f"{accept} to accept it"
            )
        if not known:
            _check_content(download, path, check)
    except UserError:
        download.part.unlink(missing_ok=True)
        raise
    finally:
        download.version.unlink(missing_ok=True)
    download.part.replace(path)
    return found


def _check_content(download: "_ResumedDownload", path: Path, check: Callable[[Path], None]) -> None:
    try:
        check(download.part)
    except UserError as error:
        reason = str(error).removeprefix(f"{download.part}").lstrip(": ")
        raise UserError(
            f"{download.url} does not send {path.name} ({reason}), and its answer was removed: "
            f"try again, or put the file at {path} by hand"
        ) from error


def _explain_failure(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    if isinstance(error, Timeout):
        return f"no answer in {TIMEOUT} s"
    if isinstance(error, ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return f"a malformed answer: {' '.join(str(error).split())}"


class _ResumedDownload:
    """A download into `part`, which goes on where this or an earlier call broke off."""

    def __init__(self, url: str, path: Path, known: str) -> None:
        self.url, self.path, self.known = url, path, known
        self.part = path.with_name(f"{path.name}.part")
        self.version = path.with_name(f"{path.name}.part.version")  # ETag or date of the file

    def fetch_part(self) -> None:
        """Download until the part is whole; raises when an answer brings no further byte."""
        self._refuse_unprotected(self.url)
        size = self._get_size()
        while True:
            try:
                return self._request_rest()
            except (ChunkedEncodingError, requests.ConnectionError, Timeout):
                if self._get_size() <= size:
                    raise
                size = self._get_size()

    def _refuse_unprotected(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE and not self.known:
            raise UserError(
                f"{url} is sent unprotected, and no sha256 of {self.path.name} is known: "
                f"get the file from a source that you trust, and put it at {self.path}"
            )

    def _get_size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _request_rest(self) -> None:
        size = self._get_size()
        headers = {"Accept-Encoding": "identity"}  # else sizes are those of the compressed answer
        version = self.version.read_text() if self.version.exists() else ""
        if size and (version or self.known):
            headers["Range"] = f"bytes={size}-"
            if version:
                headers["If-Range"] = version
        with requests.get(self.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            for hop in (*answer.history, answer):
                self._refuse_unprotected(hop.url)
            place = answer.headers.get("Content-Range", "")
            if place == f"bytes */{size}":
                return  # 416: nothing is missing
            misplaced = place and not place.startswith(f"bytes {size}-")
            if size and (misplaced or answer.status_code == 416):
                self.part.unlink()
                return self._request_rest()
            if answer.status_code not in (200, 206):  # 204 and 304 have no content either
                raise requests.HTTPError(response=answer)
            self._append_answer(answer, size if answer.status_code == 206 else 0)

    def _append_answer(self, answer: requests.Response, start: int) -> None:
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        self.version.write_text(tag)
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        if not (self.known or length or answer.headers.get("Transfer-Encoding") == "chunked"):
            raise UserError(
                f"{self.url} does not say how long {self.path.name} is, which may arrive cut: "
                f"put it at {self.path} by hand"
            )
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
