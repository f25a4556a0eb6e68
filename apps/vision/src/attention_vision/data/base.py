"""The data module of all image data sets: splits and transforms."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.datamodule import SplitDataModule, check_at_least, split_stratified
from experiment_kit.data.image_files import note_frames

from attention_vision.data.augment import Augment, Color
from attention_vision.data.image_sources import ImageDataset, ImageFiles, ImageSource

_DEFAULT_AUGMENT = Augment()


class ImageInfo(NamedTuple):
    """Facts about a data set that are known before a file is read; a model is built from them."""

    num_classes: int
    image_size: int
    mean: Color
    std: Color


class VisionData(SplitDataModule):
    """Images (B, 3, S, S), normalized, and labels (B,), of a data set that a subclass reads.

    `num_classes` and `image_size` are linked to the model's arguments of the same names.
    Evaluation never augments. Random draws of augmentation depend only on the seed, the epoch and
    the position of the batch.

    Args:
        image_size: Side of the images in pixels; null is that of the data set.
        augment: Transforms of training and evaluation.
        drop_last: Drop an incomplete last batch of training, unless it is alone; null is true.
        score_train: Score the training images too, without augmentation; null is false.
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {}
    LINKED_SIZES = ("num_classes", "image_size")
    num_classes: int
    image_size: int

    def __init__(
        self,
        dataset_name: str,
        batch_size: int = 128,
        image_size: int | None = None,
        augment: Augment = _DEFAULT_AUGMENT,
        drop_last: bool | None = None,
        score_train: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, batch_size=batch_size, **kwargs)
        check_at_least(1, image_size=image_size)
        self.augment, self.info = augment, self.DATASETS[dataset_name]
        self.drop_last, self.score_train = drop_last is not False, bool(score_train)
        self.num_classes = self.info.num_classes
        self.image_size = image_size or self.info.image_size

    def read_images(self) -> tuple[ImageSource, ImageSource]:
        """Read the training and the test images; raises UserError for wrong files."""
        raise NotImplementedError

    @cached_property
    def sources(self) -> tuple[ImageSource, ImageSource]:
        """Training and test images, read once."""
        return self.read_images()

    @cached_property
    def validation(self) -> ImageSource | None:
        """Images that protocol `validation` chooses the epoch on, if they are apart from others."""
        return None

    def load_splits(self, split: str) -> dict[str, ImageDataset]:
        """Load one split, or val and test together in protocol `test`."""
        train, test = self.sources
        kept, val = np.arange(len(train.labels)), self.validation
        held_out = np.arange(len(val.labels)) if val else None
        if self.protocol == "validation" and val is None:
            kept, held_out = split_stratified(train.labels, self.val_fraction, self.seed)
        if split == "train":
            return {"train": self.make_train_split(train, kept)}
        if split == "train_plain":
            return {split: self.make_eval_split(train, kept)}
        if split == "val" and held_out is not None:
            return {"val": self.make_eval_split(val or train, held_out)}
        names = ("test",) if self.protocol == "validation" else ("test", "val")
        return dict.fromkeys(names, self.make_eval_split(test, np.arange(len(test.labels))))

    def make_train_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Select images for training, which are augmented."""
        transform = self.augment.train_transform(self.image_size, self.info.mean, self.info.std)
        return ImageDataset(source, indices, transform)

    def make_eval_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Select images for evaluation, which are only resized and cropped."""
        transform = self.augment.eval_transform(self.image_size, self.info.mean, self.info.std)
        return ImageDataset(source, indices, transform)

    def train_dataloader(self) -> Any:
        """Load the training images, each as often as augmentation repeats it."""
        options: dict[str, Any] = {"repeats": self.augment.repeats, "drop_last": self.drop_last}
        return self.train_loader("train", **options)

    def test_dataloader(self) -> Any:
        """Load the test images, and after them the training images if they are scored too."""
        if not self.score_train:
            return super().test_dataloader()
        if "train_plain" not in self.splits:
            self.splits |= self.load_splits("train_plain")
        return [self.eval_loader("test"), self.eval_loader("train_plain")]

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], ImageDataset]:
        """Read images as those of evaluation; an unreadable one raises UserError, unlike there."""
        names = [str(path) for path in files]
        source = ImageFiles(Path(), names, [0] * len(names))
        note_frames(files)
        return names, VisionData.make_eval_split(self, source, np.arange(len(names)))
