"""Devign and BigCloneBench as CodeXGLUE splits them: functions to be judged, alone or in pairs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiment_kit.data.local import data_folder
from experiment_kit.data.split import stratified
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset

from attention_nlp.data import codexglue
from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Collate, Example, padded
from attention_nlp.data.files import Row, hub_rows
from attention_nlp.data.pairs import EncodedPairs, Paired


class Origin(NamedTuple):
    """Where a data set may lie, and how its folder and the rows of the hub are read."""

    hub: str
    folders: tuple[str, ...]
    files: tuple[str, ...]  # one of them tells the folder
    of_folder: Callable[[Path, str], list[Example]]
    of_rows: Callable[[Sequence[Row], str], list[Example]]


DEVIGN = Origin(
    "google/code_x_glue_cc_defect_detection",
    ("devign", "defect", "Defect-detection/dataset", "devign_test", "code/devign_test"),
    ("function.json", "train.jsonl", "train.parquet", "devign_test.jsonl"),
    codexglue.devign,
    codexglue.defects,
)
BIGCLONEBENCH = Origin(
    "google/code_x_glue_cc_clone_detection_big_clone_bench",
    ("bigclonebench", "clone", "Clone-detection-BigCloneBench/dataset", "bigclonebench_sampled",
     "code/bigclonebench_sampled"),
    ("data.jsonl", "train.jsonl", "train.parquet", "functions.jsonl"),
    codexglue.clones,
    codexglue.pairs,
)  # fmt: skip


def found(corpus: Origin, root: Path | None) -> Path:
    """The folder of a data set; raises UserError where it is not under `root`."""
    first, *_ = corpus.folders
    if root is None:
        raise UserError(f"no {first}: set DATA_DIR to the folder that holds it")
    for folder in (*(root / name for name in corpus.folders), root):
        if any((folder / name).is_file() for name in corpus.files):
            return folder
    looked, files = ", ".join(corpus.folders), ", ".join(corpus.files)
    raise UserError(f"no {first} in DATA_DIR {root}: one of {looked} with one of {files}")


class _CodeXGLUE(LanguageData):
    """What has an official validation set, which chooses the epoch under protocol `validation`."""

    num_labels = 2
    corpus: ClassVar[Origin]

    @classmethod
    def whereabouts(cls, name: str) -> Path:
        """Where the files lie; raises UserError where they are not under DATA_DIR."""
        return found(cls.corpus, data_folder(None))

    def read(self, split: str) -> list[Example]:
        """The functions of `train`, `valid` or `test`, which is also called `dev`."""
        split = "test" if split == "dev" else split
        if self.folder is None:
            on_hub = codexglue.SPLITS[split][-1]
            rows = hub_rows(self.corpus.hub, None, on_hub)
            return self.corpus.of_rows(rows, f"{self.corpus.hub} {on_hub}")
        return self.corpus.of_folder(found(self.corpus, self.folder), split)

    def _make(self, name: str) -> None:
        if self.protocol == "test" or name == "test":
            super()._make(name)
        else:
            examples = self.train_examples if name == "train" else self.valid_examples()
            self.parts[name] = self.encode(examples)

    def valid_examples(self) -> list[Example]:
        """What chooses the epoch."""
        return self.read("valid")


class Devign(_CodeXGLUE):
    """Is a C function faulty? From CodeXGLUE's files under DATA_DIR, or through `datasets`.

    White space is collapsed, and what is longer than `max_length` tokens is cut. Its own
    validation set chooses the epoch, so that `share` has no say. `words` are the two labels as
    texts, for a model that writes them: their token ids (B, 2, T), padded with -100, are then the
    batch's fifth part.

    Layouts: :func:`attention_nlp.data.codexglue.devign`.

    >>> Devign("devign", words=["false", "true"]).num_labels
    2
    """

    corpus = DEVIGN
    known: ClassVar[Mapping[str, Any]] = {"devign": DEVIGN}

    def __init__(self, name: str, words: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        if words is not None and len(set(words)) != 2:
            raise ValueError(f"data.words must be two words, for labels 0 and 1, got {words}")
        self.words = words

    @property
    def collate(self) -> Any:
        """What makes a batch of functions."""
        if self.words is None:
            return super().collate
        ids = padded(self.tokenizer(self.words)["input_ids"], -100)
        return WithWords(self.tokenizer.pad_token_id, ids)


class WithWords(Collate):
    """Batches of functions, and what a model may write of them.

    >>> words = Tensor([[7, 2], [8, 2]]).long()
    >>> WithWords(0, words)([([5], [0], 1), ([6], [0], 0), ([7], [0], 0)])[4].shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, pad: int, words: Tensor) -> None:
        super().__init__(pad)
        self.words = words

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make ids, mask, types, labels and words."""
        return [*super().__call__(items), self.words.expand(len(items), -1, -1)]


class BigCloneBench(_CodeXGLUE):
    """Do two Java functions do the same? From CodeXGLUE's files, or through `datasets`.

    Each function is cut to `max_length` tokens, and encoded once however many pairs it is in. Of
    the official validation pairs a `share`, drawn once with the seed, chooses the epoch, as in
    the released code; of a sample of the data set, all.

    Layouts: :func:`attention_nlp.data.codexglue.clones`. Batches: :class:`Paired`.

    >>> BigCloneBench("bigclonebench").num_labels
    2
    """

    corpus = BIGCLONEBENCH
    known: ClassVar[Mapping[str, Any]] = {"bigclonebench": BIGCLONEBENCH}

    def valid_examples(self) -> list[Example]:
        """A share of the official pairs, or all of a sample's."""
        examples = self.read("valid")
        if self.folder and (found(self.corpus, self.folder) / codexglue.SAMPLED[0]).is_file():
            return examples
        _, drawn = stratified(self._strata(examples), self.share, self.seed)
        return [examples[i] for i in drawn]

    def training_texts(self) -> list[str]:
        """Every function of the training pairs once."""
        return list(dict.fromkeys(super().training_texts()))

    def encode(self, examples: Sequence[Example]) -> Dataset[Any]:
        """Pairs of functions as token ids."""
        return EncodedPairs(examples, self.tokenizer, self.max_length)

    @property
    def collate(self) -> Any:
        """What makes a batch of pairs."""
        return Paired(self.tokenizer.pad_token_id)
