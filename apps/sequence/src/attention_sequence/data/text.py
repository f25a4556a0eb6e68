"""Text: is a review of IMDb positive? It is read byte by byte.

https://ai.stanford.edu/~amaas/data/sentiment/
"""

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.data.datamodule import split_stratified
from experiment_kit.data.folders import list_visible_files
from experiment_kit.errors import UserError

from attention_sequence.data import long_range

_CELLS = ("label", "id", "text")
_CLASSES = ("neg", "pos")
_NUM_REVIEWS = 25_000  # in either split


class Text(long_range.LongRangeData):
    """Reviews as bytes, and whether they are positive; 25,000 to train and to test, or a subset.

    They are in the folders of aclImdb, or in `imdb_{train,test}.tsv` with cells label, id and
    text, in which tabs and line ends are escaped as two characters. Under protocol `validation` a
    stratified `val_fraction` of the training split is the development set; under `test`, as
    published, the test split is, and all of the training split is trained on.

    Source: https://github.com/google-research/long-range-arena
    """

    DATASETS: ClassVar[Mapping[str, long_range.TaskInfo]] = {
        "imdb": long_range.TaskInfo(2, 256, 1000, 1024, 512)
    }
    FOLDERS = ("aclImdb", "imdb", "imdb_subset")
    MARKERS = ("imdb_train.tsv", "train/pos")
    HINT = "`allpass data text` downloads it"

    @cached_property
    def train_reviews(self) -> long_range.Examples:
        """The training split with its development set, read once."""
        return read_reviews(self.find_data(self.dataset_name, self.data_dir), "train")

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the reviews of both splits."""
        folder = cls.find_data(dataset_name, data_dir)
        return {split: _count_reviews(folder, split) for split in ("train", "test")}

    def read_examples(self, split: str) -> long_range.Examples:
        """Read the reviews of a split."""
        if split == "test":
            return read_reviews(self.find_data(self.dataset_name, self.data_dir), "test")
        if self.protocol == "test":
            return self.train_reviews
        sequences, labels = self.train_reviews
        train, val = split_stratified(labels, self.val_fraction, self.seed)
        chosen = train if split == "train" else val
        return long_range.Examples(
            long_range.RaggedArray(sequences[index].tobytes() for index in chosen), labels[chosen]
        )


def read_reviews(folder: Path, split: str) -> long_range.Examples:
    """Read a split of the reviews in a fixed random order; note a subset on standard error.

    In their files all negative ones come first, and so they would in the first scored batches.
    """
    table = folder / f"imdb_{split}.tsv"
    reviews = list(_read_table(table) if table.is_file() else _read_folder(folder, split))
    if not reviews:
        raise UserError(f"{folder} holds no review to {split}")
    if len(reviews) != _NUM_REVIEWS:
        counted = f"{len(reviews)} of {_NUM_REVIEWS} reviews to {split}"
        print(f"note: {folder} has {counted}", file=sys.stderr)
    order = np.random.default_rng(0).permutation(len(reviews))
    labels = np.array([label for label, _ in reviews])
    return long_range.Examples(
        long_range.RaggedArray(reviews[index][1] for index in order), labels[order]
    )


def _count_reviews(folder: Path, split: str) -> int:
    table = folder / f"imdb_{split}.tsv"
    if table.is_file():
        return long_range.count_lines(table)
    return sum(len(list_visible_files(folder / split / name, ".txt")) for name in _CLASSES)


def _read_table(path: Path) -> Iterator[tuple[int, bytes]]:
    for where, _, (label, _, text) in long_range.read_rows(path, _CELLS):
        if not text:
            raise UserError(f"{where} has no text")
        text = text.replace(b"\\t", b"\t").replace(b"\\n", b"\n")
        yield long_range.parse_label(label, 2, where), text


def _read_folder(folder: Path, split: str) -> Iterator[tuple[int, bytes]]:
    for label, name in enumerate(_CLASSES):
        reviews = folder / split / name
        if not reviews.is_dir():
            raise UserError(f"{reviews} does not exist ({Text.HINT})")
        for path in list_visible_files(reviews, ".txt"):
            if not (text := path.read_bytes()):
                raise UserError(f"{path} is empty")
            yield label, text
