"""Retrieval: does one paper of the ACL anthology cite the other? Both are read byte by byte.

https://aclanthology.org/anthology-network
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.errors import UserError

from attention_sequence.data import long_range

_CELLS = ("label", "id1", "id2", "text1", "text2")
_FILES = {split: f"new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")}
_FILES["val"] = _FILES.pop("eval")


class MemoryMappedPairs:
    """Two texts of each line of a file, which stays on disk."""

    def __init__(self, path: Path, spans: np.ndarray) -> None:
        self.codes, self.spans = np.memmap(path, np.uint8, "r"), spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin, middle, end = self.spans[index]
        return self.codes[begin:middle], self.codes[middle + 1 : end]


class Retrieval(long_range.LongRangeData):
    """Pairs of papers (B, 2, N), and whether one cites the other.

    147,086 pairs to train, 18,090 to choose the checkpoint and 17,437 to test.

    Source: https://github.com/google-research/long-range-arena
    """

    DATASETS: ClassVar[Mapping[str, long_range.TaskInfo]] = {
        "aan": long_range.TaskInfo(2, 256, 4000, 4096, 512)
    }
    FOLDERS = ("tsv_data", "tsv_data/tsv_data", "aan", "retrieval")
    MARKERS = (_FILES["train"],)
    HINT = f"`allpass data retrieval` downloads {long_range.RELEASE}"

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the rows."""
        folder = cls.find_data(dataset_name, data_dir)
        return {
            split: long_range.count_lines(folder / _FILES[split]) for split in ("train", "test")
        }

    def read_examples(self, split: str) -> long_range.Examples:
        """Read the pairs of a split."""
        return read_pairs(self.find_data(self.dataset_name, self.data_dir) / _FILES[split])


def read_pairs(path: Path) -> long_range.Examples:
    """Find the bytes of a file at which the two texts of each row begin, part, and end."""
    labels, spans = [], []
    for where, end, (label, *_, first, second) in long_range.read_rows(path, _CELLS):
        if not (first and second):
            raise UserError(f"{where} has an empty text")
        middle = end - len(second) - 1  # a tab
        labels.append(long_range.parse_label(label, 2, where))
        spans.append((middle - len(first), middle, end))
    return long_range.Examples(MemoryMappedPairs(path, np.array(spans)), np.array(labels))
