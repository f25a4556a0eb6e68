"""Sequences as they lie in memory or in a file, and as the arrays of ids that a model sees."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset


class Rows(Protocol):
    """The codes 0..255 of each sequence; of each pair of sequences, two of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Examples(NamedTuple):
    """Sequences and their labels (S,)."""

    rows: Rows
    labels: np.ndarray


class Ragged:
    """Sequences of unequal length, side by side in one array.

    >>> [row.tolist() for row in Ragged([b"ab", b"c"])]
    [[97, 98], [99]]
    """

    def __init__(self, rows: Iterable[bytes]) -> None:
        rows = list(rows)
        self.codes = np.frombuffer(b"".join(rows), np.uint8)
        self.ends = np.cumsum([len(row) for row in rows])

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= len(self.ends):
            raise IndexError(index)
        return self.codes[self.ends[index - 1] if index else 0 : self.ends[index]]


class Fit(NamedTuple):
    """How codes become an array of ids: cut to `truncate`, put at the start of `length` zeros.

    `first` is the id of code 0.

    >>> Fit(truncate=3, length=5)(np.array([7, 0, 7, 7])).tolist()
    [8, 1, 8, 0, 0]
    """

    truncate: int
    length: int
    first: int = 1

    def __call__(self, codes: np.ndarray) -> Tensor:
        """The ids (N,) of a sequence."""
        ids = torch.zeros(self.length, dtype=torch.long)
        cut = codes[: self.truncate].astype(np.int64)
        ids[: len(cut)] = torch.from_numpy(cut) + self.first
        return ids


class Encoded(Dataset[tuple[Tensor, Tensor, int]]):
    """Ids (N,), where they are not 0, and the label; of a pair (2, N), as it lies."""

    def __init__(self, examples: Examples, fit: Fit) -> None:
        self.rows, self.labels = examples
        self.fit = fit

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        row = self.rows[index]
        pair = isinstance(row, tuple)
        ids = torch.stack([self.fit(codes) for codes in row]) if pair else self.fit(row)
        return ids, ids != 0, int(self.labels[index])


def number(text: bytes, classes: int, where: str) -> int:
    """A label, which may be written as 1.0; raises a UserError that says where it is none.

    >>> number(b"1.0", 2, "x.tsv: row 3")
    1
    """
    try:
        value = float(text)
    except ValueError:
        value = -1
    if value not in range(classes):
        shown = text.decode(errors="replace")[:20]
        raise UserError(f"{where} has label {shown!r}, not 0 to {classes - 1}")
    return int(value)


def fields(line: bytes, names: Sequence[str], where: str) -> list[bytes]:
    r"""The cells of a line of a tsv file; raises a UserError where their number is another.

    >>> fields(b"1\tabc\r\n", ["label", "text"], "x.tsv: row 3")
    [b'1', b'abc']
    """
    cells = line.rstrip(b"\r\n").split(b"\t")
    if len(cells) != len(names):
        raise UserError(f"{where} has {len(cells)} cells, not {len(names)}: {', '.join(names)}")
    return cells
