"""Small archives of every kind, and what may become of them when they are cut or damaged."""

import io
import random
import shutil
import tarfile
import zipfile
from pathlib import Path

from experiment_kit.data.archives import extract_archive
from experiment_kit.errors import UserError

FILES = {"a.txt": b"alpha", "deep/er/b.bin": bytes(range(256)) * 3, "deep/empty": b""}
TARS = {"x.tar": "w", "x.tar.gz": "w:gz", "x.tar.xz": "w:xz", "x.tar.bz2": "w:bz2"}
NAMES = ("x.zip", *TARS)


def make_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path, files, mode="w", **fields):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_archive(path, files):
    return make_tar(path, files, TARS[path.name]) if path.name in TARS else make_zip(path, files)


SAMPLE = {
    **FILES,
    f"deep/{'long' * 30}/{'é' * 20}": random.Random(0).randbytes(99),
    "z": b"last",
}


def find_tar_end(data: bytes) -> int:
    """Return where a plain tar may be cut: behind the two blocks of zeros that end it."""
    return -(-len(data.rstrip(b"\0")) // 512) * 512 + 1024


def list_content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def flip_bit(data: bytes, position: int) -> bytes:
    """Flip one of the bits."""
    byte, bit = divmod(position, 8)
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def is_refused(path: Path, damaged: bytes) -> bool:
    """Unpack a damaged sample: True if it is refused; AssertionError for other content."""
    path.write_bytes(damaged)
    out = path.with_name("out")
    try:
        extract_archive(path, out, max_bytes=1 << 20)
    except UserError:
        return not out.exists()
    assert list_content(out) == SAMPLE
    shutil.rmtree(out)
    return False
