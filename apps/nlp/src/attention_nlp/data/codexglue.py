"""Devign and BigCloneBench in all file layouts of https://github.com/microsoft/CodeXGLUE."""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.datamodule import split_stratified
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import EncodedPairs, Example, PairCollator, TextCollator, pad_rows
from attention_nlp.data.files import Row, find_file, get_text, load_hub_rows, read_lines, read_table
from attention_nlp.tasks.base import IGNORED

SPLITS = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
_DEVIGN_TEST = "devign_test.jsonl"  # the one part of Devign that is mirrored in small files
_LABELS = {"0": 0, "1": 1, "False": 0, "True": 1}
_SAMPLE_FUNCTIONS, _SAMPLE_PAIRS = "functions.jsonl", "pairs_test.txt"  # of BigCloneBench


def read_devign(folder: Path, split: str) -> list[Example]:
    """Read the functions of a split of Devign; white space in them is collapsed.

    A folder holds `function.json` and for each split a file of indices into it, `train.txt`; or
    for each split its functions, `train.jsonl` or `train.parquet`; or only Devign's test set,
    `devign_test.jsonl`. The latter is split with the same result for every seed, a fifth to test
    and a tenth to select the epoch, and compares with no published result.

    Raises UserError for a missing or wrong column, index or label.
    """
    if path := find_file([folder], _list_names(split, ".jsonl", ".parquet")):
        return parse_functions(read_table(path, ["target"]), str(path))
    if (path := folder / "function.json").is_file():
        if listing := find_file([folder], _list_names(split, ".txt")):
            return parse_functions(_read_indexed(path, listing), str(listing))
        raise UserError(f"{folder} has function.json and no {SPLITS[split][0]}.txt")
    if not (path := folder / _DEVIGN_TEST).is_file():
        raise UserError(
            f"{folder} has no {split} of Devign: {SPLITS[split][0]}.jsonl, or function.json with "
            f"{SPLITS[split][0]}.txt"
        )
    examples = parse_functions(read_table(path, ["target"]), str(path))
    labels = np.array([example.target for example in examples])
    rest, test = split_stratified(labels, 1 / 5, seed=0)
    train, valid = split_stratified(labels[rest], 1 / 8, seed=0)
    rows = {"train": rest[train], "valid": rest[valid], "test": test}[split]
    return [examples[i] for i in rows]


def _list_names(split: str, *suffixes: str) -> list[str]:
    return [f"{name}{suffix}" for suffix in suffixes for name in SPLITS[split]]


def _read_indexed(path: Path, listing: Path) -> list[Row]:
    try:
        functions = json.loads("\n".join(read_lines(path)))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    if not (isinstance(functions, list) and all(isinstance(one, Mapping) for one in functions)):
        raise UserError(f"{path} is not a list of functions")
    rows = []
    for number, line in enumerate(read_lines(listing), 1):
        if not line.strip().isdecimal() or int(line) >= len(functions):
            last = len(functions) - 1
            raise UserError(f"{listing}, line {number}: {line!r} is not an index from 0 to {last}")
        rows.append(functions[int(line)])
    return rows


def parse_functions(rows: Iterable[Row], where: str) -> list[Example]:
    """Parse functions with their labels, 1 for a faulty one."""
    numbered = ((row, f"{where}, row {number}") for number, row in enumerate(rows, 1))
    examples = [
        Example(_parse_code(row, ("func", "code"), at), None, _parse_label(row.get("target"), at))
        for row, at in numbered
    ]
    return _check_not_empty(examples, where)


def read_clones(folder: Path, split: str) -> list[Example]:
    """Read the pairs of a split of BigCloneBench; white space in the functions is collapsed.

    A folder holds `data.jsonl` with the functions and `train.txt` with two indices and a label a
    line; or `train.parquet` or `train.jsonl` with both functions a row; or the 4,000 sampled test
    pairs, `functions.jsonl` and `pairs_test.txt`. The sample is split by function, with the same
    result for every seed: three fifths to train, a fifth to select the epoch, a fifth to test.
    Pairs across splits are left out, so that no function is in two splits.

    Raises UserError for a missing or wrong column, index or label.
    """
    if path := find_file([folder], _list_names(split, ".jsonl", ".parquet")):
        return parse_pairs(read_table(path, ["func1", "func2", "label"]), str(path))
    if (path := folder / "data.jsonl").is_file():
        if listing := find_file([folder], _list_names(split, ".txt")):
            return _read_pairs(listing, path)
        raise UserError(f"{folder} has data.jsonl and no {SPLITS[split][0]}.txt")
    if not (path := folder / _SAMPLE_FUNCTIONS).is_file():
        raise UserError(
            f"{folder} has no {split} of BigCloneBench: data.jsonl with {SPLITS[split][0]}.txt"
        )
    examples = _read_pairs(folder / _SAMPLE_PAIRS, path)
    splits = _split_functions({str(code) for example in examples for code in example[:2]})
    return [e for e in examples if splits[e.text] == splits[str(e.pair)] == split]


def _split_functions(codes: Iterable[str]) -> dict[str, str]:
    order = sorted(codes)
    random.Random(0).shuffle(order)
    ends = {"train": 3 / 5, "valid": 4 / 5, "test": 1.0}
    return {
        code: next(split for split, end in ends.items() if i < end * len(order))
        for i, code in enumerate(order)
    }


def _read_pairs(listing: Path, path: Path) -> list[Example]:
    codes = {
        str(row["idx"]): _parse_code(row, ("func",), f"{path}, row {number}")
        for number, row in enumerate(read_table(path, ["idx", "func"]), 1)
    }
    examples = []
    for number, line in enumerate(read_lines(listing), 1):
        at, fields = f"{listing}, line {number}", line.split()
        if len(fields) != 3:
            raise UserError(f"{at}: {line!r} is not two indices and a label")
        for index in fields[:2]:
            if index not in codes:
                raise UserError(f"{at}: {path.name} has no function {index}")
        examples.append(Example(codes[fields[0]], codes[fields[1]], _parse_label(fields[2], at)))
    return _check_not_empty(examples, listing)


def parse_pairs(rows: Iterable[Row], where: str) -> list[Example]:
    """Parse pairs of functions with their labels, 1 for clones; equal functions share memory."""
    shared: dict[str, str] = {}
    examples = []
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        first, second = (_parse_code(row, (name,), at) for name in ("func1", "func2"))
        first, second = (shared.setdefault(code, code) for code in (first, second))
        examples.append(Example(first, second, _parse_label(row["label"], at)))
    return _check_not_empty(examples, where)


def _parse_code(row: Row, columns: tuple[str, ...], where: str) -> str:
    column = next((name for name in columns if name in row), None)
    if column is None:
        names = ", ".join(map(str, row))
        raise UserError(f"{where}: no column {' or '.join(columns)} among {names}")
    return " ".join(get_text(row, column, where).split())


def _parse_label(value: Any, where: str) -> int:
    if str(value) not in _LABELS:
        raise UserError(f"{where}: the label {value!r} is neither 0 nor 1")
    return _LABELS[str(value)]


def _check_not_empty(examples: list[Example], where: Path | str) -> list[Example]:
    if not examples:
        raise UserError(f"{where} has no rows")
    return examples


class CodeDataset(NamedTuple):
    """The name on the hub, the folders and files to look for, and the readers of a data set."""

    hub: str
    folders: tuple[str, ...]
    files: tuple[str, ...]  # one of them identifies the folder
    read_folder: Callable[[Path, str], list[Example]]
    parse_rows: Callable[[Iterable[Row], str], list[Example]]


DEVIGN = {
    "devign": CodeDataset(
        "google/code_x_glue_cc_defect_detection",
        ("devign", "defect", "Defect-detection/dataset", "devign_test", "code/devign_test"),
        ("function.json", "train.jsonl", "train.parquet", _DEVIGN_TEST),
        read_devign,
        parse_functions,
    )
}
BIGCLONEBENCH = {
    "bigclonebench": CodeDataset(
        "google/code_x_glue_cc_clone_detection_big_clone_bench",
        ("bigclonebench", "clone", "Clone-detection-BigCloneBench/dataset",
         "bigclonebench_sampled", "code/bigclonebench_sampled"),
        ("data.jsonl", "train.jsonl", "train.parquet", _SAMPLE_FUNCTIONS),
        read_clones,
        parse_pairs,
    )
}  # fmt: skip


class _CodeXGLUE(LanguageData):
    """A data set with an official validation split, which selects the epoch by default."""

    num_labels = 2
    DATASETS: ClassVar[Mapping[str, CodeDataset]]

    @property
    def _dataset(self) -> CodeDataset:
        return self.DATASETS[self.dataset_name]

    def name_hub_table(self) -> tuple[str, str | None]:
        """Return the repository of the data set on the hub, which has one config."""
        return self._dataset.hub, None

    def find_split(self, split: str) -> Path:
        """Find the folder of all splits below DATA_DIR; UserError if there is none."""
        dataset = self._dataset
        first, *_ = dataset.folders
        root = self.require_folder(first)
        for folder in (*(root / name for name in dataset.folders), root):
            if any((folder / name).is_file() for name in dataset.files):
                return folder
        folders, files = ", ".join(dataset.folders), ", ".join(dataset.files)
        raise UserError(f"no {first} in DATA_DIR {root}: one of {folders} with one of {files}")

    def list_data_files(self) -> Sequence[Path]:
        """List the tables in the folder, which may be DATA_DIR; none of the hub."""
        files = self.find_split("train").iterdir() if self.folder else ()
        return [path for path in files if path.suffix in (".json", ".jsonl", ".txt", ".parquet")]

    def read_split(self, split: str) -> list[Example]:
        """Read the functions of `train`, `valid` or `test`, which is also called `dev`."""
        split = "test" if split == "dev" else split
        if self.folder is not None:
            return self._dataset.read_folder(self.find_split(split), split)
        hub, hub_split = self._dataset.hub, SPLITS[split][-1]
        return self._dataset.parse_rows(load_hub_rows(hub, None, hub_split), f"{hub} {hub_split}")

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
    """Predict if a C function is faulty; layouts: :func:`read_devign`, or from the hub.

    Functions longer than `max_length` tokens are cut. As the data set has a validation split,
    `val_fraction` is not used. `label_words` are both labels as texts, for a model that generates
    them: their token ids (B, 2, T), padded with -100, are then the fifth part of a batch.
    """

    DATASETS = DEVIGN

    def __init__(
        self, dataset_name: str, label_words: list[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(dataset_name, **kwargs)
        if label_words is not None and len(set(label_words)) != 2:
            raise ValueError(
                f"data.label_words must be two words, for labels 0 and 1, got {label_words}"
            )
        self.label_words = label_words

    @property
    def collate(self) -> Any:
        """Make batches of functions."""
        if self.label_words is None:
            return super().collate
        words = pad_rows(self.tokenizer(self.label_words)["input_ids"], IGNORED)
        return LabelWordsCollator(self.tokenizer.pad_token_id, words)


class LabelWordsCollator(TextCollator):
    """Pad texts as usual and add the words of both labels (B, 2, T)."""

    def __init__(self, pad_token_id: int, words: Tensor) -> None:
        super().__init__(pad_token_id)
        self.words = words

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make a batch."""
        return [*super().__call__(items), self.words.expand(len(items), -1, -1)]


class BigCloneBench(_CodeXGLUE):
    """Predict if two Java functions do the same; layouts: :func:`read_clones`, or from the hub.

    Each function is cut to `max_length` tokens and encoded once. A fraction `val_fraction` of the
    official validation pairs, drawn once with the seed, selects the epoch, as in the released
    code; of a sample of the data set, all.
    """

    DATASETS = BIGCLONEBENCH

    def read_validation(self) -> list[Example]:
        """Read a fraction of the official validation pairs, or all of a sample's."""
        examples = self.read_split("valid")
        if self.folder and (self.find_split("valid") / _SAMPLE_FUNCTIONS).is_file():
            return examples
        _, drawn = split_stratified(self._list_strata(examples), self.val_fraction, self.seed)
        return [examples[i] for i in drawn]

    def list_training_texts(self) -> list[str]:
        """List each function of the training pairs once."""
        return list(dict.fromkeys(super().list_training_texts()))

    def encode(self, examples: Sequence[Example]) -> Dataset[Any]:
        """Encode pairs of functions."""
        return EncodedPairs(examples, self.tokenizer, self.max_length)

    @property
    def collate(self) -> Any:
        """Make batches of pairs."""
        return PairCollator(self.tokenizer.pad_token_id)
