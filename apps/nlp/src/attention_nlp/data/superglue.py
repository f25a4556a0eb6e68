"""The SuperGLUE benchmark, https://super.gluebenchmark.com, without ReCoRD.

From the files of the official archive, or through `datasets`. Each task is a label for its fields
joined by separators, as in Crammed BERT's evaluation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example
from attention_nlp.data.files import Row, first_file, hub_rows, table, text

HUB = "aps/super_glue"
_JOINT = "[SEP]"  # between the fields before the last; a tokenizer's own takes its place
_ENDS = (".jsonl", ".parquet")
_FILES = {"train": ("train",), "dev": ("val", "validation")}
_SPLITS = {"train": "train", "dev": "validation"}


class Problem(NamedTuple):
    """A task: its folder, its fields in order, its labels in the order of their ids.

    `flat` makes the rows of the hub of one of the archive, where they differ.
    """

    folder: str
    fields: tuple[str, ...]
    labels: tuple[Any, ...] = (False, True)
    key: str = ""
    flat: Callable[[Row, str], Iterator[Row]] | None = None


def _answers(row: Row, where: str) -> Iterator[Row]:
    passage = _within(row, "passage", where)
    for question in _all(passage, "questions", where):
        for answer in _all(question, "answers", where):
            yield {
                "paragraph": _within(passage, "text", where),
                "question": _within(question, "question", where),
                "answer": _within(answer, "text", where),
                "label": _within(answer, "label", where),
            }


def _spans(row: Row, where: str) -> Iterator[Row]:
    sentence, target = _field(row, "text", where), _within(row, "target", where)
    spans = {name: _within(target, name, where) for name in _SPANS}
    for name in ("span1_text", "span2_text"):  # "fixed": as the text has it
        if _field(target, name, where) not in sentence:
            spans[name] = spans[name].replace("\n", " ").rstrip(".")
    yield {"text": sentence, **spans, "label": _within(row, "label", where)}


def _within(row: Any, name: str, where: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        raise UserError(f"{where}: no {name!r}")
    return row[name]


def _all(row: Any, name: str, where: str) -> list[Any]:
    if not isinstance(found := _within(row, name, where), list):
        raise UserError(f"{where}: {name} is no list, but {found!r}")
    return found


_PLACES = ("span1_index", "span2_index")
_SPANS = (*_PLACES, "span1_text", "span2_text")
_ENTAILED = ("entailment", "not_entailment")
KNOWN = {
    "boolq": Problem("BoolQ", ("question", "passage")),
    "cb": Problem("CB", ("premise", "hypothesis"), ("entailment", "contradiction", "neutral")),
    "copa": Problem("COPA", ("question", "premise", "choice1", "choice2"), (0, 1)),
    "multirc": Problem(
        "MultiRC", ("question", "paragraph", "answer"), (0, 1), key="passage", flat=_answers
    ),
    "rte": Problem("RTE", ("premise", "hypothesis"), _ENTAILED),
    "wic": Problem("WiC", ("word", "sentence1", "sentence2")),
    "wsc": Problem("WSC", ("text", *_SPANS), key="target", flat=_spans),
}


class SuperGlue(LanguageData):
    """One of SuperGLUE's tasks, under DATA_DIR or in `superglue/` of it, else from the hub.

    Where `weights` is the checkpoint of a run of pre-training, the tokenizer is in it. MultiRC is
    one example an answer. As the validation part is drawn by label, answers about one paragraph
    may be in it and in training.

    >>> SuperGlue("cb").num_labels
    3
    """

    known: ClassVar[Mapping[str, Any]] = KNOWN

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        """How many labels there are."""
        return len(KNOWN[self.problem].labels)

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where the training file of a task lies; raises UserError where it is not there."""
        return SuperGlue(name)._file("train")

    def _file(self, split: str) -> Path:
        folder, root = KNOWN[self.problem].folder, self.folder
        if root is None:
            raise UserError(f"no {folder}: set DATA_DIR to the folder that holds it")
        within = [root / part for part in ("superglue", "super_glue", "SuperGLUE", "")]
        names = [f"{name}{end}" for name in _FILES[split] for end in _ENDS]
        if found := first_file([part / folder for part in within], names):
            return found
        raise UserError(f"no {' or '.join(names)} of SuperGLUE's {folder} in DATA_DIR {root}")

    def read(self, split: str) -> list[Example]:
        """The examples of a split, in the order of the file."""
        problem = KNOWN[self.problem]
        if self.folder is None:
            config = "wsc.fixed" if self.problem == "wsc" else self.problem
            rows: Sequence[Row] = hub_rows(HUB, config, _SPLITS[split])
            where = f"{HUB} {split}"
        else:
            path = self._file(split)
            rows, where = table(path, []), str(path)
        return list(_examples(rows, problem, where))

    def training_texts(self) -> list[str]:
        """What a tokenizer is trained on: the fields, without what joins them."""
        return [field for one in super().training_texts() for field in one.split(_JOINT)]

    def encode(self, examples: Sequence[Example]) -> Dataset[Any]:
        """Examples as token ids."""
        joint = self.tokenizer.sep_token or " "
        return super().encode([e._replace(text=e.text.replace(_JOINT, joint)) for e in examples])


def _examples(rows: Sequence[Row], problem: Problem, where: str) -> Iterator[Example]:
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        flat = [row] if problem.flat is None or problem.key not in row else problem.flat(row, at)
        for one in flat:
            *first, last = (_field(one, name, at) for name in problem.fields)
            yield Example(_JOINT.join(first), last, _target(one, problem, at))


def _field(row: Row, name: str, where: str) -> str:
    value = _within(row, name, where)
    is_place = name in _PLACES and type(value) is int
    return str(value) if is_place else text(row, name, where)


def _target(row: Row, problem: Problem, where: str) -> int:
    label, labels = _within(row, "label", where), problem.labels
    if label in labels:  # of a yes or no, 0 and 1 are equal to False and True
        return labels.index(label)
    if label in range(len(labels)):  # the hub's
        return int(label)
    raise UserError(f"{where}: the label {label!r} is none of {', '.join(map(str, labels))}")
