"""The GLUE benchmark, https://gluebenchmark.com, from its own files or the hub."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example
from attention_nlp.data.files import Row, get_text, parse_label, parse_rows, read_table

HUB = "nyu-mll/glue"
MAX_SCORE = 5  # STS-B's


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
    columns: Sequence[int] = ()  # in a file without a header


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
TASKS = {
    "cola": GlueTask("CoLA", (3,), 1, _BINARY, ("sentence",), range(4)),
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
# the original release of STS-B has no header, and in some rows columns for sources at the end
_ORIGINAL_STSB = GlueTask("STS-B", (5, 6), 4, None, _PAIR, range(16))
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
    def label_names(self) -> Sequence[str]:
        """Names of the labels by their ids; none of a number."""
        return TASKS[self.dataset_name].labels or ()

    def name_hub_table(self, split: str) -> tuple[str, str, str]:
        """Return the repository, the config and the split on the hub."""
        names = _HUB_SPLITS | (_MNLI_SPLITS if self.dataset_name == "mnli" else {})
        return HUB, self.dataset_name, names[split]

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        folder = TASKS[self.dataset_name].folder
        suffixes = (".tsv", ".parquet", ".jsonl")
        names = [f"{name}{suffix}" for name in _FILE_NAMES[split] for suffix in suffixes]
        return self.find_file([folder, f"glue/{folder}", f"glue/{self.dataset_name}"], names)

    def read_split(self, split: str) -> list[Example]:
        """Read the examples of `train`, `dev` or `mismatched`, in the order of the file."""
        task, path = TASKS[self.dataset_name], self.folder and self.find_split(split)
        rows: Iterable[Row]
        if path and path.suffix == ".tsv":
            task = _ORIGINAL_STSB if path.name.startswith("sts-") else task
            where, rows = str(path), read_table(path, task.columns)
        else:
            task = task._replace(texts=task.hub_texts, label="label")
            where, rows = self.open_split(split)
        if self.dataset_name == "qqp":  # some rows of its official file are cut short
            rows = _drop_short_rows(rows, {*task.texts, task.label}, where)
        return parse_rows(rows, where, lambda row: _parse_row(row, task))

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


def _drop_short_rows(rows: Iterable[Row], columns: set[str | int], where: str) -> list[Row]:
    every = list(rows)
    whole = [row for row in every if columns <= row.keys()]
    if len(whole) < len(every):
        text = f"left out {len(every) - len(whole)} rows that are too short"
        print(f"note: {where}: {text}", file=sys.stderr)
    return whole


def _parse_row(row: Row, task: GlueTask) -> Example:
    first, *pair = (get_text(row, column) for column in task.texts)
    label = row[task.label]
    target = _parse_score(label) if task.labels is None else parse_label(label, task.labels)
    return Example(first, pair[0] if pair else None, target)


def _parse_score(score: Any) -> float:
    with suppress(TypeError, ValueError):
        if 0 <= float(score) <= MAX_SCORE:
            return float(score)
    raise ValueError(f"the score {score!r} is not a number from 0 to {MAX_SCORE}")
