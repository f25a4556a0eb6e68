"""Downloads that are checked, continued where they broke off, and never seen half done."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import requests
from filelock import FileLock
from requests import RequestException, Timeout
from requests.exceptions import ChunkedEncodingError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from experiment_kit.data.archive import extract_archive as extract_archive
from experiment_kit.errors import UserError

TIMEOUT = 30  # seconds without a byte


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
    """Fetch the files of a data set, in order, unpack its archives, and return their paths.

    Raises UserError if an archive does not contain its folder, and for what `fetch_file` and
    `extract_archive` refuse. Existing paths are left as they are.
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
    """Download a file once, and check it each time; a file that is there needs no network.

    A wrong hash is refused: of a download, which is removed, and of a file that was there, which
    is set aside as ``<path>.bad``. Without a known hash, that of the first download is recorded
    in ``<path>.sha256``, for ``sha256sum -c`` too, and required from then on. Raises a UserError
    for a wrong hash or a failed download, and a ValueError for another scheme than http.

    >>> empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    >>> fetch_file("https://example.org/nothing", "/dev/null", sha256=empty)
    PosixPath('/dev/null')
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, not {url!r}")
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}")
    path = Path(path).absolute()
    record = path.with_name(f"{path.name}.sha256")
    known = sha256 or _recorded(record)
    accept = "pass its hash as sha256" if sha256 else f"delete {record}"
    if path.exists():
        _check(path, known, accept, set_aside=sha256 is not None)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # the cells of a table run side by side and share their data
        if not path.exists():
            _download(url, path, known, accept)
            if not known:
                record.write_text(f"{pooch.file_hash(str(path))}  {path.name}\n")
    return path


def _recorded(record: Path) -> str | None:
    if not record.exists():
        return None
    if found := re.match("[0-9a-f]{64}", record.read_text()):
        return found[0]
    raise UserError(f"{record} does not begin with a sha256: delete it to record another")


def _check(path: Path, known: str | None, accept: str, set_aside: bool) -> None:
    if known is None or (found := pooch.file_hash(str(path))) == known.lower():
        return
    done = ""
    if set_aside:  # a record is only as good as the first download: its file stays
        done = f" and was moved to {path.name}.bad"
        path.replace(f"{path}.bad")
    raise UserError(f"{path} has sha256 {found}, not {known}{done}: {accept} to accept it")


def _download(url: str, path: Path, known: str | None, accept: str) -> None:
    resuming = _Resuming(path.with_name(f"{path.name}.part"), known)
    try:
        pooch.retrieve(url, known, path.name, path.parent, downloader=resuming)
    except RequestException as error:
        raise UserError(
            f"cannot download {path.name} from {url} ({_reason(error)}): "
            f"try again, or put it at {path} by hand"
        ) from error
    except ValueError as error:  # pooch's word for a wrong hash; it has removed the file
        found = re.findall("[0-9a-f]{64}", str(error))[-1]
        raise UserError(
            f"{url} has sha256 {found}, not {known}, and was removed: {accept} to accept it"
        ) from error


def _reason(error: RequestException) -> str:
    if error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, Timeout):
        return f"no answer in {TIMEOUT} s"
    return (
        "the connection broke off" if isinstance(error, ChunkedEncodingError) else "no connection"
    )


class _Resuming:
    """Downloads for pooch, continuing a part that this or an earlier call left behind."""

    def __init__(self, part: Path, known: str | None) -> None:
        self.part, self.known = part, known
        self.version = part.with_name(f"{part.name}.version")  # of the file on the server

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        reached = self._size()
        while True:
            try:
                self._continue(url)
                break
            except (ChunkedEncodingError, requests.ConnectionError, Timeout):
                if self._size() <= reached:
                    raise
                reached = self._size()
        os.replace(self.part, output_file)
        self.version.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # else the sizes are those of the zipped answer
        version = self.version.read_text() if self.version.exists() else ""
        if self._size() and (version or self.known):
            headers["Range"] = f"bytes={self._size()}-"
        if "Range" in headers and version:
            headers["If-Range"] = version
        return headers

    def _continue(self, url: str) -> None:
        size = self._size()
        with requests.get(url, headers=self._headers(), stream=True, timeout=TIMEOUT) as answer:
            place = answer.headers.get("Content-Range", "")
            if place == f"bytes */{size}":
                return  # 416: nothing is missing
            misplaced = place and not place.startswith(f"bytes {size}-")
            if size and (misplaced or answer.status_code == 416):
                self.part.unlink()
                return self._continue(url)
            answer.raise_for_status()
            self._write(answer, size if answer.status_code == 206 else 0)

    def _write(self, answer: requests.Response, start: int) -> None:
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        self.version.write_text(tag)
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        answer.raw.enforce_content_length = False  # it would drop the last bytes before a break
        with self.part.open("ab" if start else "wb") as file, _bar(file.name, start, total) as bar:
            for chunk in answer.iter_content(1 << 16):
                bar.update(bar.task_ids[0], advance=file.write(chunk))
        if total not in (None, self._size()):
            raise ChunkedEncodingError(f"{self._size()} of {total} bytes")


@contextmanager
def _bar(name: str, start: int, total: int | None) -> Iterator[Progress]:
    console = Console(stderr=True)
    title = TextColumn("{task.description}", markup=False)
    columns = (title, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        progress.add_task(Path(name).stem, completed=start, total=total)
        yield progress


fetch = fetch_file  # shim: issue 16, deleted at the end
