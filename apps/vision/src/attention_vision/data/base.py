"""The data module of all image data sets: splits, protocols, transforms."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from experiment_kit.data.parts import PartsData
from experiment_kit.data.split import stratified

from attention_vision.data.augment import Augment, Color
from attention_vision.data.image_sources import ImageDataset, ImageSource

_DEFAULT_AUGMENT = Augment()
_NEEDED = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class DatasetInfo(NamedTuple):
    """Facts about a data set that are known before a file is read; a model is built from them."""

    num_classes: int
    image_size: int
    mean: Color
    std: Color


class VisionData(PartsData):
    """Images (B, 3, S, S), normalized, and labels (B,), of a data set that a subclass reads.

    `num_classes` and `image_size` are linked to the model's arguments of the same names; without
    them, the model would silently keep its defaults.

    Protocol `validation` holds out a stratified `share` of the training images to choose the
    epoch, and scores the official test set (ImageNet's `val`) once. Protocol `test` is the
    papers': it chooses the epoch on the test set itself, so that the result is an upper bound,
    for comparison with the printed values.

    Evaluation never augments. Training drops a last incomplete batch, unless it is the only one.
    Random draws of augmentation depend on the seed, the epoch and the position of the batch alone.
    Raises ValueError for an argument out of its range.
    """

    num_classes: int
    image_size: int
    known: ClassVar[Mapping[str, DatasetInfo]] = {}

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
        augment: Augment = _DEFAULT_AUGMENT,
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
        self.info = self.known[name]
        self.num_classes = self.info.num_classes
        self.image_size = image_size or self.info.image_size
        self.parts: dict[str, ImageDataset] = {}

    def read_images(self) -> tuple[ImageSource, ImageSource]:
        """Read the training and the test images; raises UserError for wrong files."""
        raise NotImplementedError

    @cached_property
    def sources(self) -> tuple[ImageSource, ImageSource]:
        """Training and test images, read once."""
        return self.read_images()

    def setup(self, stage: str) -> None:
        """Make the splits that a stage needs; refuse a data module without its sizes."""
        for name in ("num_classes", "image_size"):
            if not isinstance(getattr(self, name, None), int):
                raise TypeError(f"{type(self).__name__} must define {name}")
        for name in _NEEDED[stage]:
            if name not in self.parts:
                self.make_split(name)

    def make_split(self, name: str) -> None:
        """Make one split, or test and val together in protocol `test`."""
        train, test = self.sources
        kept, held_out = np.arange(len(train.labels)), None
        if self.protocol == "validation":
            kept, held_out = stratified(train.labels, self.share, self.seed)
        if name == "train":
            self.parts["train"] = self.train_split(train, kept)
        elif name == "val" and held_out is not None:
            self.parts["val"] = self.eval_split(train, held_out)
        else:
            both = ("test",) if self.protocol == "validation" else ("test", "val")
            self.parts |= dict.fromkeys(both, self.eval_split(test, np.arange(len(test.labels))))

    def train_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Augment the images."""
        transform = self.augment.train_transform(self.image_size, self.info.mean, self.info.std)
        return ImageDataset(source, indices, transform)

    def eval_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Resize, crop and normalize the images."""
        transform = self.augment.eval_transform(self.image_size, self.info.mean, self.info.std)
        return ImageDataset(source, indices, transform)

    def train_dataloader(self) -> Any:
        """Load training images in an order that seed and epoch decide."""
        return self.shuffled("train", repeats=self.augment.repeats, drop_last=True)
