"""What every data set of this app has in common: its parts, its protocols, its loaders."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from experiment_kit.data.parts import PartsData
from experiment_kit.data.split import stratified

from attention_vision.data.augment import Augment, Colour
from attention_vision.data.sources import Part, Source

_PLAIN = Augment()
_NEEDED = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class Facts(NamedTuple):
    """What is known of a data set before a file is read: a model can be built without it."""

    classes: int
    size: int
    mean: Colour
    std: Colour


class VisionData(PartsData):
    """Images (B, 3, S, S), normalised, and labels (B,), of a data set that a subclass reads.

    `num_classes` and `image_size` are linked to the model's arguments of the same names; a data
    module that lacks one would silently leave the model's default in place.

    Protocol `validation` holds a stratified `share` of the training images back to choose the
    epoch, and scores the official test set (ImageNet's `val`) once. Protocol `test` is the
    papers': the epoch is chosen on the test set itself, so that the result is an upper bound,
    there to compare with what they print.

    Images that are scored are never augmented. Training drops a last incomplete batch, unless it
    is the only one. What augmentation draws is a function of the seed, the epoch and the place of
    the batch in it. Raises ValueError for an argument out of its range.
    """

    num_classes: int
    image_size: int
    known: ClassVar[Mapping[str, Facts]] = {}

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        share: float = 0.1,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        image_size: int | None = None,
        augment: Augment = _PLAIN,
    ) -> None:
        super().__init__()
        if name not in self.known:
            raise ValueError(f"data.name must be one of {', '.join(self.known)}, got {name!r}")
        if not 0 < share < 1:
            raise ValueError(f"data.share, held out of training, must be in (0, 1), got {share}")
        for key, value in {"batch_size": batch_size, "image_size": image_size}.items():
            if value is not None and value < 1:
                raise ValueError(f"data.{key} must be at least 1, got {value}")
        self.save_hyperparameters(ignore=["image_size"])  # null is what the model is told of it
        self.problem, self.data_dir, self.protocol = name, data_dir, protocol
        self.share, self.seed, self.augment = share, seed, augment
        self.batch_size, self.num_workers = batch_size, num_workers
        self.facts = self.known[name]
        self.num_classes, self.image_size = self.facts.classes, image_size or self.facts.size
        self.parts: dict[str, Part] = {}

    def read(self) -> tuple[Source, Source]:
        """The training images and the test images; raises UserError where they are not right."""
        raise NotImplementedError

    @cached_property
    def sources(self) -> tuple[Source, Source]:
        """What was read, once."""
        return self.read()

    def setup(self, stage: str) -> None:
        """Refuse a data module that does not say its sizes; make the parts that a stage needs."""
        for name in ("num_classes", "image_size"):
            if not isinstance(getattr(self, name, None), int):
                raise TypeError(f"{type(self).__name__} must define {name}")
        for name in _NEEDED[stage]:
            if name not in self.parts:
                self._make(name)

    def _make(self, name: str) -> None:
        train, test = self.sources
        kept, held = np.arange(len(train.labels)), None
        if self.protocol == "validation":
            kept, held = stratified(train.labels, self.share, self.seed)
        if name == "train":
            self.parts["train"] = self.training_part(train, kept)
        elif name == "val" and held is not None:
            self.parts["val"] = self.scored_part(train, held)
        else:
            both = ("test",) if self.protocol == "validation" else ("test", "val")
            self.parts |= dict.fromkeys(both, self.scored_part(test, np.arange(len(test.labels))))

    def training_part(self, source: Source, indices: np.ndarray) -> Part:
        """Images to be augmented."""
        transform = self.augment.training(self.image_size, self.facts.mean, self.facts.std)
        return Part(source, indices, transform)

    def scored_part(self, source: Source, indices: np.ndarray) -> Part:
        """Images to be scored."""
        transform = self.augment.evaluation(self.image_size, self.facts.mean, self.facts.std)
        return Part(source, indices, transform)

    def train_dataloader(self) -> Any:
        """Augmented images, each perhaps several times."""
        return self.shuffled("train", repeats=self.augment.repeats, drop_last=True)
