"""Files of every data set in every layout, damaged one at a time, as the data modules meet them."""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from experiment_kit.errors import exit_on_user_error

from tests.robustness.inputs.case import Case
from tests.robustness.inputs.readers import READERS, ROOT, Reader

KIND = "data file"
Damage = Callable[[bytes], bytes]


def cut(fraction: float) -> Damage:
    return lambda content: content[: int(fraction * len(content))]


def flip(fraction: float) -> Damage:
    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(fraction * (len(content) - 1))] ^= 0x81
        return bytes(changed)

    return damage


def insert(piece: bytes, fraction: float = 0.5) -> Damage:
    def damage(content: bytes) -> bytes:
        at = int(fraction * len(content))
        return content[:at] + piece + content[at:]

    return damage


DAMAGES: dict[str, Damage] = {
    "empty": lambda content: b"",
    "cut at a quarter": cut(0.25),
    "cut in half": cut(0.5),
    "last byte cut": lambda content: content[:-1],
    "first byte flipped": flip(0.0),
    "byte flipped at a third": flip(0.33),
    "byte flipped at two thirds": flip(0.67),
    "last byte flipped": flip(1.0),
    "NUL bytes inserted": insert(b"\0" * 5),
    "invalid UTF-8 inserted": insert(b"\xff\xfe\xfa"),
    "all NUL": lambda content: bytes(len(content)),
    "an HTML page": lambda content: b"<!DOCTYPE html><html><body>Please log in</body></html>",
    "twice": lambda content: content * 2,
    "byte order mark": lambda content: b"\xef\xbb\xbf" + content,
}
TEXT_DAMAGES: dict[str, Damage] = {
    "other separators": lambda c: re.sub(rb"[\t,:]", b";", c),
    "CR line ends": lambda c: re.sub(rb"\r?\n", b"\r", c),
    "no line ends": lambda c: re.sub(rb"\r?\n", b" ", c),
    "huge number": lambda c: re.sub(rb"\d+", b"99999999999999999999999", c, count=1),
    "huge last number": lambda c: re.sub(rb"\d+(?=\D*$)", b"9" * 23, c, count=1),
    "negative numbers": lambda c: re.sub(rb"(?<!\w)(\d)", rb"-\1", c),
    "numbers as text": lambda c: re.sub(rb"\d+", b"many", c),
    "NaN": lambda c: re.sub(rb"(?<![\w.])\d+(\.\d+)?(?=\s|$)", b"nan", c),
    "quotes": insert(b'"'),
    "a very long line": insert(b"x" * 50_000),
}


def make_nothing(path: Path) -> None:
    """Leave the file out."""


PLACES: dict[str, Callable[[Path], object]] = {
    "missing": make_nothing,
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a circular link": lambda path: path.symlink_to(path.name),
}


def list_cases() -> Iterator[Case]:
    for number, reader in enumerate(READERS):
        damages = DAMAGES | (TEXT_DAMAGES if reader.text else {})
        for file in reader.files:
            content = (write_original(number) / file).read_bytes()
            for name, damage in damages.items():
                if damage(content) != content:
                    yield make_case(number, file, name, partial(damage_file, damage))
            for name, make in PLACES.items():
                yield make_case(number, file, name, partial(replace_file, make))


@cache
def write_original(number: int) -> Path:
    """Write the files of a reader once, for all cases of it."""
    folder = Path(tempfile.mkdtemp(prefix="original-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    READERS[number].write(folder)
    return folder


def make_case(number: int, file: str, damage: str, change: Callable[[Path], object]) -> Case:
    reader = READERS[number]

    def prepare(folder: Path) -> None:
        shutil.copytree(write_original(number), folder / ROOT)
        change(folder / ROOT / file)

    name = f"{reader.name}: {file} {damage}"
    reasons = (r for pattern, r in reader.accepted.items() if re.search(pattern, damage))
    run = partial(read_data, reader)
    return Case(KIND, reader.app, name, run, "", next(reasons, ""), prepare=prepare)


def damage_file(damage: Damage, path: Path) -> None:
    path.write_bytes(damage(path.read_bytes()))


def replace_file(make: Callable[[Path], object], path: Path) -> None:
    path.unlink()
    make(path)


def read_data(reader: Reader) -> None:
    """Set a data module up and read every split once, as a run does."""
    with exit_on_user_error():
        data = reader.build()
        data.prepare_data()
        data.setup("fit")
        data.setup("test")
        loaders = [data.train_dataloader(), data.val_dataloader(), data.test_dataloader()]
        for loader in loaders:
            for each in loader if isinstance(loader, list) else [loader]:
                for _ in each:
                    pass
