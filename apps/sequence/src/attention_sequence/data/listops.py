"""ListOps: what is the value of a nested list of operations on digits?

https://arxiv.org/abs/1804.06028
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.errors import UserError

from attention_sequence.data.base import RELEASE, Facts, LongRangeData, Part, locate
from attention_sequence.data.rows import Examples, Ragged, fields, number

HEADER = ["Source", "Target"]
_HINT = f"{RELEASE} has it, `python -m attention_sequence.generate listops` makes it"
DRAWN = Path("runs/data/listops-drawn")
_FILES = {"train": "basic_train.tsv", "val": "basic_val.tsv", "test": "basic_test.tsv"}

# sorted: published ids follow the order of an unordered set, another one in each process
TOKENS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")
_SHORT = dict(zip(TOKENS[10:14], b"\x01\x02\x03\x04", strict=True))  # a byte for each token
_CODES = bytes.maketrans(
    bytes([*b"0123456789", *_SHORT.values(), ord("]")]), bytes(range(len(TOKENS)))
)
_VALID = b"0123456789]() \x01\x02\x03\x04"


class ListOps(LongRangeData):
    """Expressions of 500 to 2,000 of the 15 tokens in `TOKENS`, and their values 0..9.

    Parentheses, which only make the tree binary, are left out; `]` stays a token. `drawn` needs no
    file: 2,000 expressions, of which 40 choose the checkpoint and 40 test, are drawn once by
    `attention_sequence.generate` into `runs/data`, to try things out.

    Source: https://github.com/google-research/long-range-arena

    >>> data = ListOps("listops-1000")
    >>> data.num_features, data.num_classes, data.max_length
    (32, 10, 2048)
    """

    known: ClassVar[Mapping[str, Facts]] = dict.fromkeys(
        ("listops-1000", "drawn"), Facts(10, 15, 2000, 2048, 32)
    )

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the files; raises UserError where there is none."""
        return DRAWN if name == "drawn" else _folder(name, None)

    def read(self, part: Part) -> Examples:
        """The expressions of a file."""
        if self.problem == "drawn":
            return read(_drawn() / _FILES[part])
        return read(_folder(self.problem, self.data_dir) / _FILES[part])


def _folder(name: str, data_dir: str | None) -> Path:
    return locate(data_dir, [name], lambda folder: (folder / _FILES["train"]).is_file(), _HINT)


def _drawn() -> Path:
    from attention_sequence.generate import listops  # numba: a second

    listops.write(DRAWN, count=2000, seed=0, workers=1)
    return DRAWN / "listops-1000"


def read(path: Path) -> Examples:
    """Read a file of expressions and values.

    Raises UserError for a file that is absent, has another header, no row, or a row without two
    cells, without a token, with an unknown one, or with another value than 0..9.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    labels: list[int] = []
    rows = Ragged(_rows(path, labels))
    if not labels:
        raise UserError(f"{path} holds no expression")
    return Examples(rows, np.array(labels))


def _rows(path: Path, labels: list[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        header = file.readline().decode(errors="replace").rstrip("\r\n").split("\t")
        if header != HEADER:
            raise UserError(f"{path} has the header {header[:3]}, not {HEADER}")
        for row, line in enumerate(file, start=2):
            where = f"{path}: row {row}"
            source, target = fields(line, HEADER, where)
            labels.append(number(target, 10, where))
            yield codes(source, where)


def codes(source: bytes, where: str) -> bytes:
    r"""The place of each token of an expression in `TOKENS`, a byte each.

    Raises UserError for an unknown token, and where there is none.

    >>> codes(b"( ( ( [MIN 4 ) 7 ) ] )", "row 1")
    b'\x0c\x04\x07\x0e'
    """
    short = source
    for token, byte in _SHORT.items():
        short = short.replace(token.encode(), bytes([byte]))
    bare = short.translate(None, b" ")
    # nothing but known tokens, each between spaces: else look for the one that is not
    strange = any(byte in source for byte in _SHORT.values())
    if strange or short.translate(None, _VALID) or len(bare) != len(short.split()):
        tokens = source.decode(errors="replace").split(" ")
        wrong = next(token for token in tokens if token and token not in (*TOKENS, "(", ")"))
        raise UserError(f"{where} has the unknown token {wrong[:20]!r}; known: {' '.join(TOKENS)}")
    found = bare.translate(_CODES, b"()")
    if not found:
        raise UserError(f"{where} has no token")
    return found
