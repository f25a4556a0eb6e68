"""The SuperGLUE benchmark, https://super.gluebenchmark.com, without ReCoRD.

Read the files of the official archive or of the hub. A task classifies its fields, joined by
separators, as in Crammed BERT's evaluation.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import SEPARATOR, Example
from attention_nlp.data.files import Row, get_text, parse_label, parse_rows

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
    flatten: Callable[[Row], Iterator[Row]] | None = None


def _flatten_answers(row: Row) -> Iterator[Row]:
    passage = row["passage"]
    for question in passage["questions"]:
        for answer in question["answers"]:
            own = {"question": question["question"], "answer": answer["text"]}
            yield {"paragraph": passage["text"], **own, "label": answer["label"]}


def _flatten_spans(row: Row) -> Iterator[Row]:
    spans = {name: row["target"][name] for name in _SPANS}
    for name in ("span1_text", "span2_text"):  # as in the text, like the hub's "wsc.fixed"
        if spans[name] not in row["text"]:
            spans[name] = spans[name].replace("\n", " ").rstrip(".")
    yield {**row, **spans}


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
    def label_names(self) -> Sequence[str]:
        """Names of the labels by their ids."""
        return [str(label) for label in TASKS[self.dataset_name].labels]

    def count_fields(self) -> int:
        """Return how many texts a sample has."""
        return len(TASKS[self.dataset_name].fields)

    def name_hub_table(self, split: str) -> tuple[str, str, str]:
        """Return the repository, the config and the split on the hub."""
        name = self._find_task(split)
        config = "wsc.fixed" if name == "wsc" else name
        return HUB, config, "test" if name in _DIAGNOSTICS.values() else _HUB_SPLITS[split]

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        folder = TASKS[self._find_task(split)].folder
        stems = (folder,) if folder in _DIAGNOSTICS else _FILE_NAMES[split]
        names = [f"{stem}{end}" for stem in stems for end in (".jsonl", ".parquet")]
        folders = [f"{top}{folder}" for top in ("superglue/", "super_glue/", "SuperGLUE/", "")]
        return self.find_file(folders, names)

    def read_split(self, split: str) -> list[Example]:
        """Read the examples of `train` or `dev`, in the order of the file."""
        task = TASKS[self._find_task(split)]
        where, rows = self.open_split(split)
        parsed = parse_rows(rows, where, lambda row: [*_parse_row(row, task)])
        return [example for examples in parsed for example in examples]

    def _find_task(self, split: str) -> str:
        is_diagnostic = self.dataset_name in _DIAGNOSTICS.values()
        return "rte" if is_diagnostic and split == "train" else self.dataset_name

    def list_training_texts(self) -> list[str]:
        """List the fields, without their separators, to train a tokenizer."""
        return [part for text in super().list_training_texts() for part in text.split(SEPARATOR)]

    def encode(self, examples: Sequence[Example]) -> Any:
        """Encode examples with the separator of the tokenizer."""
        separator = self.tokenizer.sep_token or " "
        return super().encode(
            [e._replace(text=e.text.replace(SEPARATOR, separator)) for e in examples]
        )


def _parse_row(row: Row, task: SuperGlueTask) -> Iterator[Example]:
    for flat in task.flatten(row) if task.flatten and task.nested in row else [row]:
        indices = {name: str(flat[name]) for name in _SPAN_INDICES if name in flat}
        *first, last = (get_text({**flat, **indices}, name) for name in task.fields)
        yield Example(SEPARATOR.join(first), last, parse_label(flat["label"], task.labels))
