"""Files given with -c: broken, of another format, endless, or with surprising keys."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.apps.cases import CASES
from tests.apps.contract import AppCase
from tests.robustness.inputs.case import Case
from tests.robustness.inputs.command_lines import run_tiny

KIND = "config file"
NAME = "given.yaml"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
SAME = "the same config in another writing"
CONTENTS = {
    "binary": bytes(range(256)) * 8,
    "latin-1": "run: {data: caf\xe9}\n".encode("latin-1"),
    "utf-16": "seed_everything: 3\n".encode("utf-16"),
    "NUL bytes": b"seed_everything: 3\0\n",
    "a list": b"- 1\n- 2\n",
    "a number": b"2\n",
    "a text": b"hello\n",
    "a list of options": b"--model.dim=3\n",
    "unclosed bracket": b"model: {dim: [1\n",
    "tabs": b"model:\n\tdim: 3\n",
    "alias bomb": BOMB.encode() + b"model: {dim: *a11}\n",
    "alias bomb in an unknown key": BOMB.encode(),
    "2,000 nested maps": b"{a: " * 2000 + b"1" + b"}" * 2000,
    "python object tag": b"model: {dim: !!python/object/apply:os.system ['touch PWNED']}\n",
    "python name tag": b"model: {filter: !!python/name:os.system}\n",
    "unknown tag": b"model: {dim: !nonsense 3}\n",
    "undefined alias": b"model: {dim: *nothing}\n",
    "two documents": b"seed_everything: 1\n---\nseed_everything: 2\n",
    "an HTML page": b"<!DOCTYPE html><html><body>Please log in</body></html>\n",
    "JSON cut short": b'{"model": {"dim": 3',
}
# one bad key: the sentence names the key or the file
KEYS = {
    "2,000 nested lists": (b"model: {dim: " + b"[" * 2000 + b"]" * 2000 + b"}", "dim"),
    "recursive list": (b"model: {dim: &m [*m]}\n", "dim"),
    "recursive anchor": (b"model: &m {dim: *m}\n", "dim"),
    "duplicate key": (b"seed_everything: 1\nseed_everything: 2\n", "seed_everything"),
    "duplicate group": (b"model: {dim: 8}\nmodel: {dim: 16}\n", "model"),
    "unknown key": (b"nonsense: 3\n", "nonsense"),
    "unknown key of model": (b"model: {nonsense: 3}\n", "nonsense"),
    "unknown key of data": (b"data: {init_args: {nonsense: 3}}\n", "nonsense"),
    "abbreviated key": (b"trainer: {max_epoch: 3}\n", "max_epoch"),
    "key of another type": (b"3: {a: 1}\n", "3"),
    "null key": (b"null: 3\n", "null|None"),
    "model as list": (b"model: [1, 2]\n", "model"),
    "model as number": (b"model: 3\n", "model"),
    "trainer as text": (b"trainer: nonsense\n", "trainer"),
    "data without a name": (b"data: {class_path: nonsense.Nothing}\n", "nonsense"),
    "subcommand inside": (b"fit: {model: {dim: 3}}\n", "fit"),
    "a shell command": (
        b"model: {filter: {class_path: os.system, init_args: {command: touch PWNED}}}\n",
        "filter|os.system",
    ),
    "date as number": (b"seed_everything: 2020-01-01\n", "seed_everything"),
    "base 60 number": (b"model: {layers: 6:12}\n", "layers"),
    "octal number": (b"seed_everything: 0o17x\n", "seed_everything"),
    "a million keys": (b"".join(b"k%d: 1\n" % i for i in range(20_000)), "k0"),
    "a very long line": (b"run: {data: " + b"x" * 100_000 + b"}\n", "run.data"),
}
ACCEPTED = {
    "empty": (b"", "an empty overlay changes nothing"),
    "comments": (b"# nothing\n", "an empty overlay changes nothing"),
    "null": (b"null\n", "an empty overlay changes nothing"),
    "BOM": (b"\xef\xbb\xbfseed_everything: 3\n", "YAML allows a byte order mark"),
    "CRLF": (b"seed_everything: 3\r\n", "YAML allows CRLF at the end of a line"),
    "CR": (b"seed_everything: 3\r", "YAML allows CR at the end of a line"),
    "no newline": (b"seed_everything: 3", "YAML needs no newline at the end"),
    "JSON": (b'{"seed_everything": 3}', "JSON is YAML"),
    "merge keys": (b"run: &r {profile: smoke}\nspectral: {<<: {samples: 4}}\n", SAME),
}


def make_missing(path: Path) -> None:
    """Leave out the file."""


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_unreadable(path: Path) -> None:
    path.write_text("seed_everything: 3\n")
    path.chmod(0)


PLACES: dict[str, Callable[[Path], object]] = {
    "missing file": make_missing,
    "folder": Path.mkdir,
    "FIFO": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "circular link": link_to_itself,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
}


def list_cases() -> Iterator[Case]:
    for app in CASES:
        for name, content in CONTENTS.items():
            yield make_case(app, name, partial(write_content, content))
        for name, (content, key) in KEYS.items():
            yield make_case(app, name, partial(write_content, content), f"{NAME}|{key}")
        for name, (content, reason) in ACCEPTED.items():
            yield make_case(app, name, partial(write_content, content), accepted=reason)
        for name, make in PLACES.items():
            yield make_case(app, name, make)


def write_content(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def make_case(
    app: AppCase,
    name: str,
    make: Callable[[Path], object],
    mentions: str = NAME,
    accepted: str = "",
) -> Case:
    run = partial(run_tiny, app, "fit", ["-c", NAME])
    what = f"fit -c {NAME}: {name}"
    return Case(KIND, app.name, what, run, mentions, accepted, prepare=lambda f: make(f / NAME))
