"""The GLUE benchmark, https://gluebenchmark.com, from its own files or through `datasets`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiment_kit.errors import UserError

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example
from attention_nlp.data.files import Row, first_file, hub_rows, table, text

HUB = "nyu-mll/glue"
_HIGHEST = 5  # of the scores of STS-B
_ENTAILED = ("entailment", "not_entailment")


class Problem(NamedTuple):
    """Where a task keeps its texts and labels: its folder, columns by name or number, labels.

    `labels` in the order of their ids, None for a number from 0 to 5; `hub` names the text
    columns in the parquet and jsonl files that `datasets` writes, whose label is an id.
    """

    folder: str
    texts: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...] | None
    hub: tuple[str, ...]
    header: bool = True


_PAIR = ("sentence1", "sentence2")
KNOWN = {
    "cola": Problem("CoLA", (3,), 1, ("0", "1"), ("sentence",), header=False),
    "sst2": Problem("SST-2", ("sentence",), "label", ("0", "1"), ("sentence",)),
    "mrpc": Problem("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), _PAIR),
    "qqp": Problem(
        "QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), ("question1", "question2")
    ),
    "stsb": Problem("STS-B", _PAIR, "score", None, _PAIR),
    "mnli": Problem(
        "MNLI", _PAIR, "gold_label", ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
    ),
    "qnli": Problem("QNLI", ("question", "sentence"), "label", _ENTAILED, ("question", "sentence")),
    "rte": Problem("RTE", _PAIR, "label", _ENTAILED, _PAIR),
}  # fmt: skip
# the original release of STS-B, without a header
_ORIGINAL_STSB = Problem("STS-B", (5, 6), 4, None, _PAIR, header=False)
_NAMES = {
    "train": ("train", "sts-train"),
    "dev": ("dev", "validation", "sts-dev", "dev_matched", "validation_matched"),
    "mismatched": ("dev_mismatched", "validation_mismatched"),
}
_HUB_SPLITS = {"train": "train", "dev": "validation"}
_MNLI_SPLITS = {"dev": "validation_matched", "mismatched": "validation_mismatched"}


class Glue(LanguageData):
    """One of GLUE's tasks; MNLI has a second development set, of other genres.

    Files are looked for under DATA_DIR, in the folder of the task or in `glue/` of it: the tsv
    files of the benchmark, or parquet or jsonl as `datasets` writes them. Without DATA_DIR they
    are fetched from the hub.

    >>> Glue("cola", weights="minilm").num_labels
    2
    """

    known: ClassVar[Mapping[str, Any]] = KNOWN

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        """How many labels there are; 1 where the target is a number."""
        return len(KNOWN[self.problem].labels or (0,))

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where the files of a task lie; raises UserError where they are not under DATA_DIR."""
        return Glue(name)._file("train")

    def _file(self, split: str) -> Path:
        folder, root = KNOWN[self.problem].folder, self.folder
        if root is None:
            raise UserError(f"no {folder}: set DATA_DIR to the folder that holds it")
        folders = [root / folder, root / "glue" / folder, root / "glue" / self.problem]
        names = [
            f"{name}{kind}" for name in _NAMES[split] for kind in (".tsv", ".parquet", ".jsonl")
        ]
        if found := first_file(folders, names):
            return found
        looked = " or ".join(_NAMES[split])
        raise UserError(f"no {looked} (.tsv, .parquet, .jsonl) of {folder} in DATA_DIR {root}")

    def read(self, split: str) -> list[Example]:
        """The examples of a split, in the order of the file."""
        problem = KNOWN[self.problem]
        if self.folder is None:
            names = _HUB_SPLITS | (_MNLI_SPLITS if self.problem == "mnli" else {})
            rows: Sequence[Row] = hub_rows(HUB, self.problem, names[split])
            return list(_of_ids(rows, problem, f"{HUB} {split}"))
        path = self._file(split)
        if path.suffix != ".tsv":
            rows = table(path, [*problem.hub, "label"])
            return list(_of_ids(rows, problem, str(path)))
        if path.name.startswith("sts-"):
            problem = _ORIGINAL_STSB
        skip = self.problem == "qqp"  # its official file has some rows that are cut short
        rows = table(path, [*problem.texts, problem.label], problem.header, skip_short=skip)
        return list(_of_names(rows, problem, str(path)))

    def setup(self, stage: str) -> None:
        """Make the parts that a stage needs, MNLI's second development set among them."""
        super().setup(stage)
        if self.problem == "mnli" and stage != "validate" and "mismatched" not in self.parts:
            self.parts["mismatched"] = self.encode(self.read("mismatched"))

    def test_dataloader(self) -> Any:
        """The development set, and that of other genres where there is one."""
        first = self.in_order("test")
        return [first, self.in_order("mismatched")] if "mismatched" in self.parts else first


def _of_names(rows: Sequence[Row], problem: Problem, where: str) -> Iterator[Example]:
    for number, row in enumerate(rows, 1):
        first, *pair = (row[column] for column in problem.texts)
        target = _target(row[problem.label], problem, f"{where}, row {number}")
        yield Example(first, pair[0] if pair else None, target)


def _target(label: str, problem: Problem, where: str) -> float | int:
    if problem.labels is None:
        return _number(label, where)
    if label not in problem.labels:
        raise UserError(f"{where}: the label {label!r} is none of {', '.join(problem.labels)}")
    return problem.labels.index(label)


def _number(score: Any, where: str) -> float:
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= _HIGHEST:  # nor is nan
        raise UserError(f"{where}: the score {score!r} is not a number from 0 to {_HIGHEST}")
    return number


def _of_ids(rows: Sequence[Row], problem: Problem, where: str) -> Iterator[Example]:
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        first, *pair = (text(row, column, at) for column in problem.hub)
        yield Example(first, pair[0] if pair else None, _id(row["label"], problem, at))


def _id(label: Any, problem: Problem, where: str) -> float | int:
    if problem.labels is None:
        return _number(label, where)
    if label not in range(len(problem.labels)):
        last = len(problem.labels) - 1
        raise UserError(f"{where}: the label {label!r} is not from 0 to {last}")
    return int(label)  # 1.0 and true are in a range, too
