"""What the data sets of this app have in common, and what those of the Long Range Arena do."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from experiment_kit.data import local
from experiment_kit.data.parts import PartsData
from torch.utils.data import Dataset

from attention_sequence.data.rows import Encoded, Examples, Fit

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_TOPS = ("", "lra/", "lra_release/", "lra_release/lra_release/")
Part = Literal["train", "val", "test"]
_NEEDED: Mapping[str, tuple[Part, ...]] = {
    "fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",),
}  # fmt: skip


class SequenceData(PartsData):
    """What every data set of this app tells its model.

    The three attributes are linked to the model's arguments of the same names; a data module
    that lacks one would silently leave the model's default in place.
    """

    num_features: int
    num_classes: int
    max_length: int

    def setup(self, stage: str) -> None:
        """Refuse a data module that does not say its sizes."""
        for name in ("num_features", "num_classes", "max_length"):
            if not isinstance(getattr(self, name, None), int):
                raise TypeError(f"{type(self).__name__} must define {name}")


class Facts(NamedTuple):
    """A task as published: classes, distinct codes, content, array, rows of the token table."""

    classes: int
    codes: int
    truncate: int
    length: int
    vocabulary: int


class LongRangeData(SequenceData):
    """A task of the Long Range Arena: ids (B, N), which are real (B, N), labels (B,).

    Sequences are cut to `truncate` tokens and padded with 0 to `max_length`; null is the task's
    own. Ids begin at 1, so that 0 is padding alone, and what is not 0 is real. With
    `zero_is_padding`, as published, pixels are their own ids 0..255, so that black ones are
    masked; texts and expressions are the same either way, since their ids begin at 1 there too.
    `vocabulary`, the rows of the token table, is published larger than it need be.

    Protocol `validation` chooses the checkpoint on the development set and scores the test set
    once. That is the papers' protocol too, but for Text. Protocol `test` chooses it on the test
    set itself: an upper bound, which the papers print for Text. A `share` of the training data
    is the development set of a task that comes without one (Text, Image).

    Raises ValueError for an argument out of its range.

    Source: https://arxiv.org/abs/2011.04006
    """

    known: ClassVar[Mapping[str, Facts]] = {}

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        share: float = 0.1,
        truncate: int | None = None,
        max_length: int | None = None,
        vocabulary: int | None = None,
        zero_is_padding: bool = False,
        batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if name not in self.known:
            raise ValueError(f"data.name must be one of {', '.join(self.known)}, got {name!r}")
        if not 0 < share < 1:
            raise ValueError(f"data.share, held out of training, must be in (0, 1), got {share}")
        self.save_hyperparameters(ignore=["max_length"])  # null is what the model is told of it
        self.problem, self.data_dir, self.protocol = name, data_dir, protocol
        self.share, self.seed, self.zero_is_padding = share, seed, zero_is_padding
        self.batch_size, self.num_workers = batch_size, num_workers
        facts = self.facts = self.known[name]
        self.truncate = facts.truncate if truncate is None else truncate
        self.max_length = facts.length if max_length is None else max_length
        self.num_features = facts.vocabulary if vocabulary is None else vocabulary
        self.num_classes = facts.classes
        self._check()
        self.parts: dict[str, Dataset[Any]] = {}

    def _check(self) -> None:
        for key in ("batch_size", "truncate"):
            if getattr(self, key) < 1:
                raise ValueError(f"data.{key} must be at least 1, got {getattr(self, key)}")
        if self.max_length < self.truncate:
            text = f"must hold data.truncate, {self.truncate} tokens, got {self.max_length}"
            raise ValueError(f"data.max_length {text}")
        if self.num_features <= self.facts.codes:
            text = f"must exceed the {self.facts.codes} tokens, got {self.num_features}"
            raise ValueError(f"data.vocabulary {text}")

    def read(self, part: Part) -> Examples:
        """The sequences of a part; raises UserError where they are not right."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Make the parts that a stage needs."""
        super().setup(stage)
        for part in _NEEDED[stage]:
            if part not in self.parts:
                self._make(part)

    def _make(self, part: Part) -> None:
        if self.protocol == "test" and part != "train":
            scored = Encoded(self.read("test"), self.fit)
            self.parts |= {"val": scored, "test": scored}
        else:
            self.parts[part] = Encoded(self.read(part), self.fit)

    @property
    def fit(self) -> Fit:
        """How codes become ids."""
        return Fit(self.truncate, self.max_length)


class PixelData(LongRangeData):
    """A task whose tokens are the grey values of an image, of which 0 is black."""

    @property
    def fit(self) -> Fit:
        """How pixels become ids: 1..256, or as they are where 0 is padding."""
        return super().fit._replace(first=0 if self.zero_is_padding else 1)


def locate(
    data_dir: str | None, folders: Iterable[str], is_it: Callable[[Path], bool], hint: str
) -> Path:
    """The first of the folders that is it, in DATA_DIR or the release's own folders there."""
    return local.locate(data_dir, folders, is_it, hint, _TOPS)
