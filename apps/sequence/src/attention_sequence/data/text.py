"""Text: is a review of IMDb, read byte by byte, a good one?

https://ai.stanford.edu/~amaas/data/sentiment/
"""

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from experiment_kit.data.split import stratified
from experiment_kit.errors import UserError

from attention_sequence.data.base import Facts, LongRangeData, Part, locate
from attention_sequence.data.rows import Examples, Ragged, fields, number

_HINT = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz has it"
_CELLS = ("label", "id", "text")
_CLASSES = ("neg", "pos")
_WHOLE = 25_000  # reviews in either part


class Text(LongRangeData):
    """Reviews as bytes, and whether they are good; 25,000 to train and to test, or a subset.

    They lie in the folders of aclImdb, or in `imdb_{train,test}.tsv` with cells label, id and
    text, in which tabs and line ends are written as two characters. Under protocol `validation` a
    stratified `share` of the training part is the development set; under `test` the test part is
    it, as published, and all of the training part is trained on.

    Source: https://github.com/google-research/long-range-arena

    >>> data = Text("imdb", truncate=4000, max_length=4096)
    >>> data.num_features, data.num_classes, data.max_length
    (512, 2, 4096)
    """

    known: ClassVar[Mapping[str, Facts]] = {"imdb": Facts(2, 256, 1000, 1024, 512)}

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of both parts; raises UserError where there is none."""
        return _folder(None)

    @cached_property
    def source(self) -> Examples:
        """The training part, read once."""
        return read(_folder(self.data_dir), "train")

    def read(self, part: Part) -> Examples:
        """The reviews of a part."""
        if part == "test":
            return read(_folder(self.data_dir), "test")
        if self.protocol == "test":
            return self.source
        kept, held = stratified(self.source.labels, self.share, self.seed)
        chosen = kept if part == "train" else held
        rows = Ragged(self.source.rows[index].tobytes() for index in chosen)
        return Examples(rows, self.source.labels[chosen])


def _folder(data_dir: str | None) -> Path:
    def is_it(folder: Path) -> bool:
        return (folder / "imdb_train.tsv").is_file() or (folder / "train/pos").is_dir()

    return locate(data_dir, ["aclImdb", "imdb", "imdb_subset"], is_it, _HINT)


def read(folder: Path, part: Literal["train", "test"]) -> Examples:
    """Read a part of the reviews, shuffled once for all; a subset is told on standard error.

    As they lie, all bad ones come first, and so would be the first batches that are scored.

    Raises UserError for a part that is absent, and for a review that is empty or has no label.
    """
    table = folder / f"imdb_{part}.tsv"
    found = list(_of_table(table) if table.is_file() else _of_folder(folder, part))
    if not found:
        raise UserError(f"{folder} holds no review to {part}")
    if len(found) != _WHOLE:
        print(f"note: {folder} has {len(found)} of {_WHOLE} reviews to {part}", file=sys.stderr)
    order = np.random.default_rng(0).permutation(len(found))
    labels = np.array([label for label, _ in found])
    return Examples(Ragged(found[index][1] for index in order), labels[order])


def _of_table(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for row, line in enumerate(file, start=1):
            where = f"{path}: row {row}"
            label, _, text = fields(line, _CELLS, where)
            if not text:
                raise UserError(f"{where} has no text")
            yield number(label, 2, where), text.replace(b"\\t", b"\t").replace(b"\\n", b"\n")


def _of_folder(folder: Path, part: str) -> Iterator[tuple[int, bytes]]:
    for label, name in enumerate(_CLASSES):
        place = folder / part / name
        if not place.is_dir():
            raise UserError(f"{place} does not exist ({_HINT})")
        for path in sorted(place.glob("*.txt")):
            if not (text := path.read_bytes()):
                raise UserError(f"{path} is empty")
            yield label, text
