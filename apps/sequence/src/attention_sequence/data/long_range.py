"""Tasks of the Long Range Arena: sequences of bytes, their ids, and their files."""

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from experiment_kit.data.csv_files import check_width
from experiment_kit.data.datamodule import check_at_least, find_dataset
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset, Subset

from attention_sequence.data.base import SequenceData

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_SUBFOLDERS = ("", "lra/", "lra_release/", "lra_release/lra_release/")


class TaskInfo(NamedTuple):
    """A task as published; `num_codes` counts the codes that occur, `vocab_size` all ids."""

    num_classes: int
    num_codes: int
    truncate: int
    max_length: int
    vocab_size: int


class Examples(NamedTuple):
    """Sequences, each the codes 0..255 or a pair of such arrays, and their labels (S,)."""

    sequences: Any
    labels: np.ndarray


class RaggedArray:
    """Sequences of unequal length, concatenated in one array."""

    def __init__(self, sequences: Iterable[bytes]) -> None:
        sequences = list(sequences)
        self.codes = np.frombuffer(b"".join(sequences), np.uint8)
        self.ends = np.cumsum([len(sequence) for sequence in sequences])

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= len(self.ends):
            raise IndexError(index)
        return self.codes[self.ends[index - 1] if index else 0 : self.ends[index]]


class TruncateAndPad(NamedTuple):
    """Codes to ids: cut to `truncate` codes, add `first_id` to each, pad with 0 to `max_length`."""

    truncate: int
    max_length: int
    first_id: int = 1

    def __call__(self, codes: np.ndarray) -> Tensor:
        """Return the ids (N,) of a sequence."""
        ids = torch.zeros(self.max_length, dtype=torch.long)
        kept = codes[: self.truncate].astype(np.int64)
        ids[: len(kept)] = torch.from_numpy(kept) + self.first_id
        return ids


class EncodedExamples(Dataset[tuple[Tensor, Tensor, int]]):
    """Ids (N,), of a pair (2, N), their mask (ids that are not 0), and the label."""

    def __init__(self, examples: Examples, encode: TruncateAndPad) -> None:
        self.sequences, self.labels = examples
        self.encode = encode

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        codes = self.sequences[index]
        pair = isinstance(codes, tuple)
        ids = torch.stack([self.encode(one) for one in codes]) if pair else self.encode(codes)
        return ids, ids != 0, int(self.labels[index])


class LongRangeData(SequenceData):
    """A task of the Long Range Arena: ids (B, N), their mask (B, N), labels (B,).

    Ids begin at 1, so that 0 is padding alone. Protocol `validation` is the papers' too, except for
    Text, where they use `test`. `val_fraction` of the training data is held out of a task without
    development set (Text, Image).

    A subclass defines `read_examples`, and in class attributes the `FOLDERS` that its data may be
    in, in DATA_DIR or in the release's folders, the `MARKERS`, one of which such a folder
    contains, and a `HINT` how to obtain the data.

    Args:
        truncate: Tokens of a sequence; longer ones are cut; null is the task's.
        max_length: Tokens to which sequences are padded with 0; null is the task's.
        vocab_size: Rows of the token table, published larger than necessary; null is the task's.
        zero_is_padding: Mask black pixels, whose id is then 0, as published.
        drop_last_scored: Score whole batches alone, as published; null is false.

    Source: https://arxiv.org/abs/2011.04006
    """

    DATASETS: ClassVar[Mapping[str, TaskInfo]] = {}
    FOLDERS: ClassVar[Sequence[str]]
    MARKERS: ClassVar[Sequence[str]]
    HINT: ClassVar[str]
    IS_IMAGE: ClassVar[bool] = False  # codes are grey values; 0 is black

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        truncate: int | None = None,
        max_length: int | None = None,
        vocab_size: int | None = None,
        zero_is_padding: bool = False,
        drop_last_scored: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir, **kwargs)
        info = self.DATASETS[dataset_name]
        self.zero_is_padding, self.drop_last_scored = zero_is_padding, bool(drop_last_scored)
        self.truncate = info.truncate if truncate is None else truncate
        self.max_length = info.max_length if max_length is None else max_length
        self.num_features = info.vocab_size if vocab_size is None else vocab_size
        self.num_classes = info.num_classes
        check_at_least(1, truncate=self.truncate)
        if self.max_length < self.truncate:
            text = f"data.max_length must be at least data.truncate, {self.truncate}"
            raise ValueError(f"{text} tokens, got {self.max_length}")
        if self.num_features <= info.num_codes:
            text = "data.vocab_size must exceed the"
            raise ValueError(f"{text} {info.num_codes} tokens, got {self.num_features}")
        check_at_least(1, max_length=self.max_length, vocab_size=self.num_features)

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder of the data set."""

        def is_task(folder: Path) -> bool:
            return any((folder / marker).exists() for marker in cls.MARKERS)

        folders = [folder.format(dataset_name) for folder in cls.FOLDERS]
        return find_dataset(data_dir, folders, is_task, cls.HINT, _SUBFOLDERS)

    def read_examples(self, split: str) -> Examples:
        """Read the sequences of a split; raises UserError for a bad file."""
        raise NotImplementedError

    def load_splits(self, split: str) -> dict[str, Any]:
        """Encode a split; under protocol `test`, the test split is the validation split too."""
        names = ("test", "val") if self.protocol == "test" and split != "train" else (split,)
        first_id = 0 if self.IS_IMAGE and self.zero_is_padding else 1
        encode = TruncateAndPad(self.truncate, self.max_length, first_id)
        examples: Dataset[Any] = EncodedExamples(self.read_examples(names[0]), encode)
        if self.drop_last_scored and split != "train":
            count = len(examples)  # type: ignore[arg-type]
            examples = Subset(examples, range(count - count % self.batch_size or count))
        return dict.fromkeys(names, examples)


def count_lines(path: Path) -> int:
    """Count the lines of a file that are not blank."""
    with path.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def parse_label(text: bytes, num_classes: int, where: str) -> int:
    """Parse a label, which may be written as 1.0; raises UserError, which names the place."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if value not in range(num_classes):
        shown = text.decode(errors="replace")[:20]
        raise UserError(f"{where} has label {shown!r}, not 0 to {num_classes - 1}")
    return int(value)


def read_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, int, list[bytes]]]:
    """Yield of each row of a tsv file its place, the byte at which it ends, and its named cells."""
    if not path.is_file() or not path.stat().st_size:
        raise UserError(f"{path} {'is empty' if path.is_file() else 'does not exist'}")
    begin = 0
    with path.open("rb") as file:
        for row, line in enumerate(file, start=1):
            where, cells = f"{path}: row {row}", line.rstrip(b"\r\n").split(b"\t")
            if line.strip():
                check_width(cells, names, where, "a tab within a text cuts it, or CR ends lines")
                if b"\0" in line:
                    raise UserError(f"{where} has characters NUL, as UTF-16 has: save it as UTF-8")
                if len(cells) < len(names):
                    text = f"{len(names)}: {', '.join(names)}"
                    raise UserError(f"{where} has {len(cells)} cells, not {text}")
                del cells[len(names) :]
                end = begin + len(b"\t".join(cells))
                cells[0] = cells[0].removeprefix(codecs.BOM_UTF8)
                yield where, end, cells
            begin += len(line)
