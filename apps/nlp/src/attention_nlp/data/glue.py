"""The GLUE benchmark, https://gluebenchmark.com, from its own files or the hub."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiment_kit.errors import UserError

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example
from attention_nlp.data.files import Row, find_file, get_text, load_hub_rows, read_table

HUB = "nyu-mll/glue"
MAX_SCORE = 5  # of STS-B


class GlueTask(NamedTuple):
    """The layout of a task: its folder, the columns of texts and label, the labels by id.

    `labels` is None for a number from 0 to 5; `hub_texts` are the text columns in parquet and jsonl
    files of `datasets`, whose label is an id.
    """

    folder: str
    texts: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...] | None
    hub_texts: tuple[str, ...]
    header: bool = True


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
TASKS = {
    "cola": GlueTask("CoLA", (3,), 1, _BINARY, ("sentence",), header=False),
    "sst2": GlueTask("SST-2", ("sentence",), "label", _BINARY, ("sentence",)),
    "mrpc": GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY, _PAIR),
    "qqp": GlueTask("QQP", _QUESTIONS, "is_duplicate", _BINARY, _QUESTIONS),
    "stsb": GlueTask("STS-B", _PAIR, "score", None, _PAIR),
    "mnli": GlueTask(
        "MNLI", _PAIR, "gold_label", ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
    ),
    "qnli": GlueTask(
        "QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("question", "sentence")
    ),
    "rte": GlueTask("RTE", _PAIR, "label", _ENTAILMENT, _PAIR),
}  # fmt: skip
# the original release of STS-B has no header
_ORIGINAL_STSB = GlueTask("STS-B", (5, 6), 4, None, _PAIR, header=False)
_FILE_NAMES = {
    "train": ("train", "sts-train"),
    "dev": ("dev", "validation", "sts-dev", "dev_matched", "validation_matched"),
    "mismatched": ("dev_mismatched", "validation_mismatched"),
}
_HUB_SPLITS = {"train": "train", "dev": "validation"}
_MNLI_SPLITS = {"dev": "validation_matched", "mismatched": "validation_mismatched"}


class Glue(LanguageData):
    """One task of GLUE; MNLI has a second development set, of other genres.

    Reads the tsv files of the benchmark, or parquet or jsonl files of `datasets`, in the folder of
    the task below DATA_DIR or its folder `glue`. Without DATA_DIR it loads from the hub.
    """

    DATASETS = TASKS
    FILE_SPLITS = tuple(_FILE_NAMES)

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        """Return the number of labels; 1 if the target is a number."""
        return len(self.label_names or (0,))

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the labels by their ids; none of a number."""
        return TASKS[self.dataset_name].labels or ()

    def name_hub_table(self) -> tuple[str, str | None]:
        """Return the repository and the config of the task on the hub."""
        return HUB, self.dataset_name

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        folder = TASKS[self.dataset_name].folder
        root = self.require_folder(folder)
        folders = [root / folder, root / "glue" / folder, root / "glue" / self.dataset_name]
        suffixes = (".tsv", ".parquet", ".jsonl")
        names = [f"{name}{suffix}" for name in _FILE_NAMES[split] for suffix in suffixes]
        if path := find_file(folders, names):
            return path
        expected = " or ".join(_FILE_NAMES[split])
        raise UserError(f"no {expected} (.tsv, .parquet, .jsonl) of {folder} in DATA_DIR {root}")

    def read_split(self, split: str) -> list[Example]:
        """Read the examples of `train`, `dev` or `mismatched`, in the order of the file."""
        task = TASKS[self.dataset_name]
        if self.folder is None:
            names = _HUB_SPLITS | (_MNLI_SPLITS if self.dataset_name == "mnli" else {})
            rows: Iterable[Row] = load_hub_rows(HUB, self.dataset_name, names[split])
            return list(_parse_rows(rows, task, f"{HUB} {split}", is_hub=True))
        path = self.find_split(split)
        if path.suffix != ".tsv":
            rows = read_table(path, [*task.hub_texts, "label"])
            return list(_parse_rows(rows, task, str(path), is_hub=True))
        if path.name.startswith("sts-"):
            task = _ORIGINAL_STSB
        skip_short = self.dataset_name == "qqp"  # some rows of its official file are cut short
        rows = read_table(path, [*task.texts, task.label], task.header, skip_short)
        return list(_parse_rows(rows, task, str(path), is_hub=False))

    def load_splits(self, split: str) -> dict[str, Any]:
        """Read and encode a split; MNLI's test split brings its second development set."""
        splits = super().load_splits(split)
        if self.dataset_name == "mnli" and "test" in splits:
            splits["mismatched"] = self.encode(self.read_split("mismatched"))
        return splits

    def test_dataloader(self) -> Any:
        """Load the development set, and that of other genres if there is one."""
        first = self.eval_loader("test")
        return [first, self.eval_loader("mismatched")] if "mismatched" in self.splits else first


def _parse_rows(rows: Iterable[Row], task: GlueTask, where: str, is_hub: bool) -> Iterator[Example]:
    columns, label = (task.hub_texts, "label") if is_hub else (task.texts, task.label)
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        first, *pair = (get_text(row, column, at) for column in columns)
        yield Example(first, pair[0] if pair else None, _parse_target(row[label], task, at, is_hub))


def _parse_target(label: Any, task: GlueTask, where: str, is_hub: bool) -> float | int:
    if task.labels is None:
        return _parse_score(label, where)
    if is_hub and label in range(len(task.labels)):
        return int(label)  # 1.0 and true are in a range, too
    if not is_hub and label in task.labels:
        return task.labels.index(label)
    names = ", ".join(task.labels)
    reason = f"not from 0 to {len(task.labels) - 1}" if is_hub else f"none of {names}"
    raise UserError(f"{where}: the label {label!r} is {reason}")


def _parse_score(score: Any, where: str) -> float:
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= MAX_SCORE:  # also false for nan
        raise UserError(f"{where}: the score {score!r} is not a number from 0 to {MAX_SCORE}")
    return number
