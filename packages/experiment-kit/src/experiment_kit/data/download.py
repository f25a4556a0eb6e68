"""Downloads that are checked, continued where they broke off, and never seen half done."""

import re
from http import HTTPStatus
from pathlib import Path

import pooch
import requests
from filelock import FileLock
from requests.exceptions import ChunkedEncodingError, ConnectionError, RequestException, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from experiment_kit.errors import UserError

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte


def fetch(url: str, path: str | Path, sha256: str | None = None) -> Path:
    """Download a file once, and check it each time.

    Without a known hash, that of the first download is recorded in ``<path>.sha256`` (which
    ``sha256sum -c`` reads) and required from then on. A file that exists and matches needs no
    network; one that does not is refused: a known hash sets it aside as ``<path>.bad``. Raises
    a UserError for a wrong hash and for a download that fails, and a ValueError for another
    scheme than http.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, not {url!r}")
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # cells of a table run side by side and share their data
        record = path.with_name(f"{path.name}.sha256")
        known = sha256 or _recorded(record)
        if path.exists():
            _check(path, known, record if sha256 is None else None)
        else:
            _download(url, path, known, record if sha256 is None else None)
        if known is None:
            record.write_text(f"{pooch.file_hash(str(path))}  {path.name}\n")
    return path


def _recorded(record: Path) -> str | None:
    return record.read_text().split()[0] if record.exists() else None


def _accept(record: Path | None) -> str:
    return f"delete {record}" if record else "give its hash as sha256"


def _check(path: Path, known: str | None, record: Path | None) -> None:
    found = pooch.file_hash(str(path))
    if known is None or found == known.lower():
        return
    ...


def _download(url: str, path: Path, known: str | None, record: Path | None) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        pooch.retrieve(url, known, path.name, path.parent, downloader=Resuming(part))
    except RequestException as error:
        ...
