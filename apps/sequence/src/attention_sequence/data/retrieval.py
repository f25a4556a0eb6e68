"""Retrieval: does one paper of the ACL anthology cite the other? Both are read byte by byte.

https://aclanthology.org/anthology-network
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.errors import UserError

from attention_sequence.data.base import RELEASE, Facts, LongRangeData, Part, locate
from attention_sequence.data.rows import Examples, fields, number

_HINT = f"{RELEASE} has it; nothing makes it, since the papers are no free text"
_CELLS = ("label", "id1", "id2", "text1", "text2")
_FILES = {part: f"new_aan_pairs.{part}.tsv" for part in ("train", "eval", "test")}
_FILES["val"] = _FILES.pop("eval")


class Pairs:
    """Two texts a line of a file, which stays on disk."""

    def __init__(self, path: Path, spans: np.ndarray) -> None:
        self.codes, self.spans = np.memmap(path, np.uint8, "r"), spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin, middle, end = self.spans[index]
        return self.codes[begin:middle], self.codes[middle + 1 : end]


class Retrieval(LongRangeData):
    """Pairs of papers (B, 2, N), and whether one cites the other.

    147,086 pairs to train, 18,090 to choose the checkpoint and 17,437 to test.

    Source: https://github.com/google-research/long-range-arena

    >>> data = Retrieval("aan")
    >>> data.num_features, data.num_classes, data.max_length
    (512, 2, 4096)
    """

    known: ClassVar[Mapping[str, Facts]] = {"aan": Facts(2, 256, 4000, 4096, 512)}

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the files; raises UserError where there is none."""
        return _folder(None)

    def read(self, part: Part) -> Examples:
        """The pairs of a file."""
        return read(_folder(self.data_dir) / _FILES[part])


def _folder(data_dir: str | None) -> Path:
    folders = ["tsv_data", "tsv_data/tsv_data", "aan", "retrieval"]
    return locate(data_dir, folders, lambda folder: (folder / _FILES["train"]).is_file(), _HINT)


def read(path: Path) -> Examples:
    """Find the pairs of a file.

    Raises UserError for a file that is absent or has no row, and for a row without five cells,
    with an empty text, or another label than 0 and 1.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    found = list(_spans(path))
    if not found:
        raise UserError(f"{path} holds no pair")
    table = np.array(found)
    return Examples(Pairs(path, table[:, 1:]), table[:, 0])


def _spans(path: Path) -> Iterator[tuple[int, int, int, int]]:
    begin = 0
    with path.open("rb") as file:
        for row, line in enumerate(file, start=1):
            where = f"{path}: row {row}"
            label, *ids, first, second = fields(line, _CELLS, where)
            if not (first and second):
                raise UserError(f"{where} has an empty text")
            start = begin + len(label) + sum(map(len, ids)) + 3  # tabs
            middle = start + len(first)
            yield number(label, 2, where), start, middle, middle + 1 + len(second)
            begin += len(line)
