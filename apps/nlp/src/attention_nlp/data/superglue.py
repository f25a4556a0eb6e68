"""The SuperGLUE benchmark, https://super.gluebenchmark.com, without ReCoRD.

Read the files of the official archive or of the hub. A task classifies its fields, joined by
separators, as in Crammed BERT's evaluation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import SEPARATOR, Example
from attention_nlp.data.files import Row, find_file, get_text, load_hub_rows, read_table

HUB = "aps/super_glue"
_FILE_NAMES = {"train": ("train",), "dev": ("val", "validation")}
_HUB_SPLITS = {"train": "train", "dev": "validation"}
_DIAGNOSTICS = {"AX-b": "axb", "AX-g": "axg"}  # with labels, and without a training set


class SuperGlueTask(NamedTuple):
    """The layout of a task: its folder, its fields in order, its labels in the order of their ids.

    `flatten` turns a row of the archive, which has the key `nested`, into rows as on the hub.
    """

    folder: str
    fields: tuple[str, ...]
    labels: tuple[Any, ...] = (False, True)
    nested: str = ""
    flatten: Callable[[Row, str], Iterator[Row]] | None = None


def _flatten_answers(row: Row, where: str) -> Iterator[Row]:
    passage = _get_field(row, "passage", where)
    for question in _get_list(passage, "questions", where):
        for answer in _get_list(question, "answers", where):
            yield {
                "paragraph": _get_field(passage, "text", where),
                "question": _get_field(question, "question", where),
                "answer": _get_field(answer, "text", where),
                "label": _get_field(answer, "label", where),
            }


def _flatten_spans(row: Row, where: str) -> Iterator[Row]:
    sentence, target = _get_part(row, "text", where), _get_field(row, "target", where)
    spans = {name: _get_field(target, name, where) for name in _SPANS}
    for name in ("span1_text", "span2_text"):  # as in the text, like the hub's "wsc.fixed"
        if _get_part(target, name, where) not in sentence:
            spans[name] = spans[name].replace("\n", " ").rstrip(".")
    yield {"text": sentence, **spans, "label": _get_field(row, "label", where)}


def _get_field(row: Any, name: str, where: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        raise UserError(f"{where}: no {name!r}")
    return row[name]


def _get_list(row: Any, name: str, where: str) -> list[Any]:
    field = _get_field(row, name, where)
    if not isinstance(field, list):
        raise UserError(f"{where}: {name} is not a list, but {field!r}")
    return field


_SPAN_INDICES = ("span1_index", "span2_index")
_SPANS = (*_SPAN_INDICES, "span1_text", "span2_text")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "axb": SuperGlueTask("AX-b", ("sentence1", "sentence2"), _ENTAILMENT),
    "axg": SuperGlueTask("AX-g", ("premise", "hypothesis"), _ENTAILMENT),
    "boolq": SuperGlueTask("BoolQ", ("question", "passage")),
    "cb": SuperGlueTask(
        "CB", ("premise", "hypothesis"), ("entailment", "contradiction", "neutral")
    ),
    "copa": SuperGlueTask("COPA", ("question", "premise", "choice1", "choice2"), (0, 1)),
    "multirc": SuperGlueTask(
        "MultiRC", ("question", "paragraph", "answer"), (0, 1), "passage", _flatten_answers
    ),
    "rte": SuperGlueTask("RTE", ("premise", "hypothesis"), _ENTAILMENT),
    "wic": SuperGlueTask("WiC", ("word", "sentence1", "sentence2")),
    "wsc": SuperGlueTask("WSC", ("text", *_SPANS), nested="target", flatten=_flatten_spans),
}


class SuperGlue(LanguageData):
    """One task of SuperGLUE, below DATA_DIR or its folder `superglue`, else from the hub.

    The diagnostics AX-b and AX-g are scored by a network that is trained on RTE. If `weights` is a
    pre-training run or its checkpoint, the tokenizer is in it. An example of MultiRC is one
    answer. The validation part is drawn by label, so that it may share paragraphs with the training
    part.
    """

    DATASETS = TASKS

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        """Return the number of labels."""
        return len(TASKS[self.dataset_name].labels)

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the labels by their ids."""
        return [str(label) for label in TASKS[self.dataset_name].labels]

    def count_fields(self) -> int:
        """Return how many texts a sample has."""
        return len(TASKS[self.dataset_name].fields)

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        folder = TASKS[self._find_task(split)].folder
        root = self.require_folder(folder)
        tops = [root / top for top in ("superglue", "super_glue", "SuperGLUE", "")]
        stems = (folder,) if folder in _DIAGNOSTICS else _FILE_NAMES[split]
        names = [f"{stem}{end}" for stem in stems for end in (".jsonl", ".parquet")]
        if path := find_file([top / folder for top in tops], names):
            return path
        raise UserError(f"no {' or '.join(names)} of SuperGLUE's {folder} in DATA_DIR {root}")

    def read_split(self, split: str) -> list[Example]:
        """Read the examples of `train` or `dev`, in the order of the file."""
        name = self._find_task(split)
        if self.folder is None:
            config = "wsc.fixed" if name == "wsc" else name
            hub_split = "test" if name in _DIAGNOSTICS.values() else _HUB_SPLITS[split]
            rows: Iterable[Row] = load_hub_rows(HUB, config, hub_split)
            where = f"{HUB} {split}"
        else:
            path = self.find_split(split)
            rows, where = read_table(path, []), str(path)
        numbered = ((row, f"{where}, row {number}") for number, row in enumerate(rows, 1))
        task = TASKS[name]
        return [example for row, at in numbered for example in _parse_row(row, task, at)]

    def _find_task(self, split: str) -> str:
        is_diagnostic = self.dataset_name in _DIAGNOSTICS.values()
        return "rte" if is_diagnostic and split == "train" else self.dataset_name

    def list_training_texts(self) -> list[str]:
        """List the fields, without their separators, to train a tokenizer."""
        return [part for text in super().list_training_texts() for part in text.split(SEPARATOR)]

    def encode(self, examples: Sequence[Example]) -> Dataset[Any]:
        """Encode examples with the separator of the tokenizer."""
        separator = self.tokenizer.sep_token or " "
        return super().encode(
            [e._replace(text=e.text.replace(SEPARATOR, separator)) for e in examples]
        )


def _parse_row(row: Row, task: SuperGlueTask, where: str) -> Iterator[Example]:
    for flat in task.flatten(row, where) if task.flatten and task.nested in row else [row]:
        *first, last = (_get_part(flat, name, where) for name in task.fields)
        yield Example(SEPARATOR.join(first), last, _parse_label(flat, task, where))


def _get_part(row: Row, name: str, where: str) -> str:
    value = _get_field(row, name, where)
    is_index = name in _SPAN_INDICES and type(value) is int
    return str(value) if is_index else get_text(row, name, where)


def _parse_label(row: Row, task: SuperGlueTask, where: str) -> int:
    label, labels = _get_field(row, "label", where), task.labels
    if label in labels:  # 0 and 1 equal False and True
        return labels.index(label)
    if label in range(len(labels)):  # an id, as on the hub
        return int(label)
    raise UserError(f"{where}: the label {label!r} is none of {', '.join(map(str, labels))}")
