"""ImageNet-1k, ImageNet-100, Tiny-ImageNet and own images: a folder for each class."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from experiment_kit.data.datamodule import find_dataset, split_stratified
from experiment_kit.errors import UserError
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.image_sources import (
    ImageDataset,
    ImageFiles,
    ImageSource,
    SkipUnreadable,
    drop_unreadable,
)

# ImageNet's training images have these; the papers use them for its subsets too
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# No paper that reports ImageNet-100 here names its classes. These are those of CMC,
# github.com/HobbitLong/CMC/blob/master/imagenet100.txt, the most common list (solo-learn has it).
IMAGENET_100 = Path(__file__).with_name("imagenet_100.txt")
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_HIDDEN = re.compile(r"/(\.|__MACOSX)")  # copies by notebooks and by archives of a Mac


class _Location(NamedTuple):
    folders: tuple[str, ...]
    download: str


_LOCATIONS = {
    "ImageNet-1k": _Location(("imagenet", "imagenet-1k", "."), "imagenet"),
    "ImageNet-100": _Location(("imagenet-100", "imagenet", "imagenet-1k", "."), "imagenet"),
    "Tiny-ImageNet": _Location(
        ("tiny-imagenet-200", "vision/tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        "tiny_imagenet",
    ),
}


class ImageFolders(VisionData):
    """ImageNet-1k, ImageNet-100 or Tiny-ImageNet; their `val` is the test set.

    `classes` is a file with the names of the class folders to use, for another subset than
    ImageNet-100's own. Labels number the classes in the order of their names. Files that cannot
    be read are named and counted: training replaces them by the next readable one, evaluation
    leaves them out. `verify` finds them: it reads each image of evaluation beforehand (a minute
    for 50,000). Without `verify`, an unreadable one ends the run.

    Raises UserError for folders that are absent, empty, or of other classes than expected.
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {
        "ImageNet-1k": ImageInfo(1000, 224, MEAN, STD),
        "ImageNet-100": ImageInfo(100, 224, MEAN, STD),
        "Tiny-ImageNet": ImageInfo(200, 64, MEAN, STD),
    }

    def __init__(
        self, dataset_name: str, classes: str | None = None, verify: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(dataset_name, **kwargs)
        self.verify, self.class_list = verify, Path(classes) if classes else None
        if dataset_name == "ImageNet-100":
            self.class_list = self.class_list or IMAGENET_100
        self.chosen = _read_class_list(self.class_list) if self.class_list else None
        self.num_classes = len(self.chosen) if self.chosen else self.info.num_classes

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the folder that holds `train` and `val`; raises UserError if there is none."""
        location = _LOCATIONS[dataset_name]
        hint = f"see `make data DATA={location.download}`"

        def has_splits(folder: Path) -> bool:
            return all((folder / split).is_dir() for split in ("train", "val"))

        return find_dataset(data_dir, location.folders, has_splits, hint)

    def list_data_files(self) -> Sequence[Path]:
        """List the folders of both splits."""
        root = self.find_data(self.dataset_name, self.data_dir)
        return [root / "train", root / "val"]

    def _find_train(self) -> Path:
        return self.find_data(self.dataset_name, self.data_dir) / "train"

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the class folders."""
        return self._select_classes(self._find_train())

    def read_images(self) -> tuple[ImageFiles, ImageFiles]:
        """List the files of both splits."""
        root = self.find_data(self.dataset_name, self.data_dir)
        train, val = root / "train", root / "val"
        classes = self._select_classes(train)
        annotations = val / "val_annotations.txt"
        if annotations.is_file():
            return list_files(train, classes), _read_annotations(annotations, classes)
        self._check_classes(val, classes)
        return list_files(train, classes), list_files(val, classes)

    def _select_classes(self, train: Path) -> list[str]:
        found = list_subfolders(train)
        if self.chosen is None and len(found) != self.num_classes:
            raise UserError(
                f"{train} has {len(found)} class folders, and {self.dataset_name} has"
                f" {self.num_classes}: name those to use in a file, and give it as data.classes"
            )
        if absent := sorted(set(self.chosen or ()) - set(found)):
            raise UserError(f"{train} lacks {_format_classes(absent)} of {self.class_list}")
        return self.chosen or found

    def _check_classes(self, val: Path, classes: list[str]) -> None:
        found = set(list_subfolders(val))
        if absent := sorted(set(classes) - found):
            raise UserError(f"{val} lacks {_format_classes(absent)} that train has")
        if (unseen := sorted(found - set(classes))) and self.chosen is None:
            raise UserError(f"{val} has {_format_classes(unseen)} that train does not have")

    def load_splits(self, split: str) -> dict[str, ImageDataset]:
        """Load one split; shuffle the validation images, as files come class by class."""
        splits = super().load_splits(split)
        if "val" in splits:  # else its first batches would hold a single class
            val = splits["val"]
            order = np.random.default_rng(0).permutation(val.indices)
            splits["val"] = ImageDataset(val.source, order, val.transform)
        return splits

    def make_train_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Select images for training; readable ones replace the others."""
        transform = super().make_train_split(source, indices).transform
        return SkipUnreadable(cast(ImageFiles, source), indices, transform)

    def make_eval_split(self, source: ImageSource, indices: np.ndarray) -> ImageDataset:
        """Select images for evaluation; leave out those that cannot be read."""
        if self.verify:
            indices = drop_unreadable(cast(ImageFiles, source), indices)
        return super().make_eval_split(source, indices)

    def teardown(self, stage: str) -> None:
        """Print the number of training images that were replaced."""
        train = self.splits.get("train")
        if stage == "fit" and isinstance(train, SkipUnreadable) and (bad := int(train.bad.sum())):
            print(f"warning: {bad} of {len(train)} training images were replaced", file=sys.stderr)


class ImageFolder(ImageFolders):
    """Own images, in any `folder` of DATA_DIR: `train` and `val`, or the classes at once.

    Beside `train`, the first of `test`, `val`, `valid` and `validation` is the test set. A folder
    without them is split: a fifth of each class is the test set, the same for every run. Labels
    number the classes in the order of their names. Hidden folders and files are not read.
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {"image_folder": ImageInfo(2, 224, MEAN, STD)}

    def __init__(
        self, dataset_name: str = "image_folder", folder: str = "images", **kwargs: Any
    ) -> None:
        self.folder = folder
        super().__init__(dataset_name, **kwargs)
        self.num_classes = len(self.chosen or list_subfolders(self._find_train()))

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, folder: str = "images"
    ) -> Path:
        """Find the folder; raises UserError if there is none."""
        return find_dataset(data_dir, [folder], Path.is_dir, "data.folder names it")

    def _find_train(self) -> Path:
        root = self.find_data(self.dataset_name, self.data_dir, self.folder)
        return root / "train" if (root / "train").is_dir() else root

    def list_data_files(self) -> Sequence[Path]:
        """Return the folder."""
        return [self.find_data(self.dataset_name, self.data_dir, self.folder)]

    def read_images(self) -> tuple[ImageFiles, ImageFiles]:
        """List the files of both splits."""
        train = self._find_train()
        classes = self._select_classes(train)
        images = list_files(train, classes)
        beside = [train.with_name(name) for name in _TEST_FOLDERS] if train.name == "train" else []
        found = [folder for folder in beside if folder.is_dir()]
        if found:
            test, *others = found
            if others:
                print(f"note: {others[0]} is not read: {test} is the test set", file=sys.stderr)
            self._check_classes(test, classes)
            return images, list_files(test, classes)
        train_images, test_images = (
            ImageFiles(images.root, images.names[chosen], images.labels[chosen])
            for chosen in split_stratified(images.labels, 1 / 5, seed=0)
        )
        return train_images, test_images


def _read_class_list(path: Path) -> list[str]:
    names = sorted(set(path.read_text().split()))
    if len(names) < 2:
        raise UserError(f"data.classes: {path} must name two classes or more, not {len(names)}")
    return names


def _format_classes(names: list[str]) -> str:
    more = ", ..." if len(names) > 3 else ""
    return f"{len(names)} of the classes ({', '.join(names[:3])}{more})"


def list_subfolders(folder: Path) -> list[str]:
    """List the folders in a folder by name, without hidden ones; UserError if there is none."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if found := [name for name in names if not _HIDDEN.search(f"/{name}")]:
        return found
    raise UserError(f"{folder} has no folder for each class, with the images inside")


def list_files(folder: Path, classes: list[str]) -> ImageFiles:
    """List the images of the classes; raises UserError for a class without any."""
    numbers, start = {name: number for number, name in enumerate(classes)}, len(f"{folder}/")

    def is_image(path: str) -> bool:
        return path.lower().endswith(IMG_EXTENSIONS) and not _HIDDEN.search(path, start - 1)

    found = make_dataset(folder, numbers, is_valid_file=is_image, allow_empty=True)
    if empty := sorted(set(classes) - {classes[number] for _, number in found}):
        raise UserError(f"{folder} has no image in {_format_classes(empty)}")
    paths, labels = zip(*found, strict=True)
    return ImageFiles(folder, [path[start:] for path in paths], labels)


def _read_annotations(path: Path, classes: list[str]) -> ImageFiles:
    """Read Tiny-ImageNet's list: each line has the name and the class of an image, and a box."""
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    names = [f"images/{row[0]}" for row in rows]
    return ImageFiles(path.parent, names, [numbers[row[1]] for row in rows])
