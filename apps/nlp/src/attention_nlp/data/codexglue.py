"""Devign and BigCloneBench in all file layouts of https://github.com/microsoft/CodeXGLUE."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from experiment_kit.data.datamodule import split_stratified
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example, collate_pairs, encode_pairs, pad_rows
from attention_nlp.data.files import (
    Row,
    get_text,
    parse_json,
    parse_label,
    parse_rows,
    read_lines,
    read_table,
)
from attention_nlp.tasks.base import IGNORED

T = TypeVar("T")
SPLITS = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
_LABELS = ("0", "1")


def parse_function(row: Row) -> Example:
    """Parse a function with its label, 1 for a faulty one."""
    column = "code" if "code" in row and "func" not in row else "func"
    return Example(_parse_code(row, column), None, parse_label(row["target"], _LABELS))


def parse_pair(row: Row) -> Example:
    """Parse a pair of functions with its label, 1 for clones."""
    first, second = (_parse_code(row, column) for column in ("func1", "func2"))
    return Example(first, second, parse_label(row["label"], _LABELS))


def _parse_code(row: Row, column: str) -> str:
    return sys.intern(" ".join(get_text(row, column).split()))  # one of 9,126 in 901,028 pairs


def _choose_functions(listing: Path, path: Path) -> list[Example]:
    """Read the functions whose places in `path` are the lines of a listing."""
    rows = {str(i): row for i, row in enumerate(parse_json("\n".join(read_lines(path)), path))}
    lines = filter(str.strip, read_lines(listing))
    chosen = parse_rows(lines, listing, lambda line: _find_function(rows, line))
    return parse_rows(chosen, listing, parse_function)


def _choose_pairs(listing: Path, path: Path) -> list[Example]:
    """Read the pairs of which a line of a listing has two indices in `path`, and a label."""
    rows: Iterable[Row] = read_table(path)
    parsed = parse_rows(rows, path, lambda row: (str(row["idx"]), _parse_code(row, "func")))
    functions = dict(parsed)

    def parse_line(line: str) -> Example:
        first, second, label = line.split()
        code, other = (_find_function(functions, index) for index in (first, second))
        return Example(code, other, parse_label(label, _LABELS))

    return parse_rows(filter(str.strip, read_lines(listing)), listing, parse_line)


def _find_function(functions: Mapping[str, T], index: str) -> T:
    if index.strip() not in functions:
        raise ValueError(f"there is no function {index}")
    return functions[index.strip()]


class _CodeXGLUE(LanguageData):
    """A data set with an official validation split, which selects the epoch by default.

    For each split its folder holds `train.jsonl` or `train.parquet`, or indices into the functions
    of the file `CONTENT`, `train.txt`, which `choose` reads. White space in the code is collapsed.
    """

    num_labels = 2
    HUB: ClassVar[str]
    FOLDERS: ClassVar[Sequence[str]]
    CONTENT: ClassVar[str]
    choose: Any  # a listing and the file of all functions -> examples
    parse_row: Any  # a row -> an example

    def name_hub_table(self, split: str) -> tuple[str, None, str]:
        """Return the repository of the data set on the hub, which has one config, and the split."""
        return self.HUB, None, SPLITS[split][-1]

    def find_split(self, split: str) -> Path:
        """Find the folder of all splits below DATA_DIR."""
        names = (self.CONTENT, "train.jsonl", "train.parquet")
        return self.find_file((*self.FOLDERS, ""), names).parent

    def list_data_files(self) -> Sequence[Path]:
        """List the tables in the folder, which may be DATA_DIR; none of the hub."""
        files = self.find_split("train").iterdir() if self.folder else ()
        return [path for path in files if path.suffix in (".json", ".jsonl", ".txt", ".parquet")]

    def read_split(self, split: str) -> list[Example]:
        """Read the functions of `train`, `valid` or `test`, which is also called `dev`."""
        split = "test" if split == "dev" else split
        if self.folder is None:
            where, rows = self.open_split(split)
            return parse_rows(rows, where, self.parse_row)
        folder = self.find_split(split)
        for suffix in (".jsonl", ".parquet", ".txt"):
            for path in (folder / f"{name}{suffix}" for name in SPLITS[split]):
                if path.is_file() and suffix == ".txt":
                    return self.choose(path, folder / self.CONTENT)
                if path.is_file():
                    return parse_rows(read_table(path), path, self.parse_row)
        raise UserError(f"{folder} has no {split}.jsonl, or {self.CONTENT} with {split}.txt")

    def load_splits(self, split: str) -> dict[str, Dataset[Any]]:
        """Read and encode a split; the official validation split selects the epoch."""
        if self.protocol == "test" or split == "test":
            return super().load_splits(split)
        examples = self.train_examples if split == "train" else self.read_validation()
        return {split: self.encode(examples)}

    def read_validation(self) -> list[Example]:
        """Read the examples that select the epoch."""
        return self.read_split("valid")


class Devign(_CodeXGLUE):
    """Predict if a C function is faulty; from files or the hub.

    As the data set has a validation split, `val_fraction` is not used.

    Args:
        label_words: Both labels as texts, for a model that generates them: their token ids
            (B, 2, T), padded with -100, are then the fifth part of a batch.
    """

    DATASETS = ("devign",)
    HUB = "google/code_x_glue_cc_defect_detection"
    FOLDERS = ("devign", "defect", "Defect-detection/dataset")
    CONTENT = "function.json"
    choose = staticmethod(_choose_functions)
    parse_row = staticmethod(parse_function)

    def __init__(
        self, dataset_name: str, label_words: list[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(dataset_name, **kwargs)
        if label_words is not None and len(set(label_words)) != 2:
            text = "data.label_words must be two"
            raise ValueError(f"{text} words, for labels 0 and 1, got {label_words}")
        self.label_words = label_words

    @property
    def collate(self) -> Any:
        """Make batches of functions."""
        if self.label_words is None:
            return super().collate
        words = pad_rows(self.tokenizer(self.label_words)["input_ids"], IGNORED)
        return partial(_collate_with_words, super().collate, words)


def _collate_with_words(collate: Any, words: Tensor, items: Sequence[Any]) -> list[Tensor]:
    return [*collate(items), words.expand(len(items), -1, -1)]


class BigCloneBench(_CodeXGLUE):
    """Predict if two Java functions do the same; from files or the hub.

    Each function is cut to `max_length` tokens and encoded once. A fraction `val_fraction` of the
    official validation pairs, drawn once with the seed, selects the epoch, as in the released
    code.
    """

    DATASETS = ("bigclonebench",)
    HUB = "google/code_x_glue_cc_clone_detection_big_clone_bench"
    FOLDERS = ("bigclonebench", "clone", "Clone-detection-BigCloneBench/dataset")
    CONTENT = "data.jsonl"
    choose = staticmethod(_choose_pairs)
    parse_row = staticmethod(parse_pair)
    encode_examples = staticmethod(encode_pairs)
    collate_items = staticmethod(collate_pairs)

    def read_validation(self) -> list[Example]:
        """Read a fraction of the official validation pairs."""
        examples = self.read_split("valid")
        _, drawn = split_stratified(self._list_strata(examples), self.val_fraction, self.seed)
        return [examples[i] for i in drawn]

    def list_training_texts(self) -> list[str]:
        """List each function of the training pairs once."""
        return list(dict.fromkeys(super().list_training_texts()))
