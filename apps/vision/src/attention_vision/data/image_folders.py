"""ImageNet-1k, ImageNet-100, Tiny-ImageNet and own images: a folder for each class."""

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.datamodule import find_dataset, split_stratified
from experiment_kit.data.image_files import IMAGE_SUFFIXES, format_names, note_frames
from experiment_kit.errors import UserError
from experiment_kit.run_files import is_hidden, list_visible_folders, warn_once

from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.image_sources import (
    ImageDataset,
    ImageFiles,
    ImageSource,
    SkipUnreadable,
    count_images,
    drop_unreadable,
    read_annotations,
    warn_copies,
)

# ImageNet's training images have these; the papers use them for its subsets too
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# No paper that reports ImageNet-100 here names its classes. These are those of CMC,
# github.com/HobbitLong/CMC/blob/master/imagenet100.txt, the most common list (solo-learn has it).
IMAGENET_100 = Path(__file__).with_name("imagenet_100.txt")
_SPLIT = re.compile(
    r"(?:\w+?[-_ ])??"
    r"(?:(?P<train>train(?:ing|[-_ ]?val)?)|(?P<val>val(?:id(?:at(?:e|ion))?)?|dev)|"
    r"(?P<test>test(?:ing|s)?)|(?P<eval>eval(?:uation)?))"
    r"(?:[-_. ]?(?:set|data|images?|x?\d+)|[.]x)?",  # ImageNet-100 of Kaggle has train.X1 and val.X
    re.IGNORECASE,
)
# parts of images, as HAM10000_images_part_1, and what is beside images
_PLACES = re.compile(r"(?i)\w*ima?ge?s?_part_?\d+|(jpeg)?ima?ge?s?_?\d*|(mask|annotation|label)s?")
_LOCATIONS = {  # folders in DATA_DIR, and the download
    "ImageNet-1k": (("imagenet", "imagenet-1k", "."), "imagenet"),
    "ImageNet-100": (("imagenet-100", "imagenet", "imagenet-1k", "."), "imagenet"),
    "Tiny-ImageNet": (
        ("tiny-imagenet-200", "vision/tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        "tiny_imagenet",
    ),
}


class ImageFolders(VisionData):
    """ImageNet-1k, ImageNet-100 or Tiny-ImageNet; their `val` is the test set.

    Labels number the classes in the order of their names. Files that cannot be read are named and
    counted: training replaces them by the next readable one, evaluation leaves them out.

    Args:
        classes: File with the names of the class folders to use, a line each; null is all, or
            ImageNet-100's.
        verify: Read each image of evaluation beforehand (a minute for 50,000) to leave out those
            that cannot be read; if false, such an image ends the run.
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
        folders, download = _LOCATIONS[dataset_name]

        def has_splits(folder: Path) -> bool:
            return all((folder / split).is_dir() for split in ("train", "val"))

        return find_dataset(data_dir, folders, has_splits, f"see `allpass data {download}`")

    @cached_property
    def folders(self) -> dict[str, Path]:
        """Folders of `train` and `test`, and of `val` where validation images are apart."""
        root = self.find_data(self.dataset_name, self.data_dir)
        return {"train": root / "train", "test": root / "val"}

    def list_data_files(self) -> Sequence[Path]:
        """List the folders of both splits."""
        return [*self.folders.values()]

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the class folders; raises UserError for others than those of the data set."""
        train = self.folders["train"]
        found = list_subfolders(train)
        if self.chosen is None and len(found) != self.num_classes:
            raise UserError(
                f"{train} has {len(found)} class folders, and {self.dataset_name} has"
                f" {self.num_classes}: name those to use in a file, and give it as data.classes"
            )
        if absent := sorted(set(self.chosen or ()) - set(found)):
            raise UserError(f"{train} lacks {_format_classes(absent)} of {self.class_list}")
        return self.chosen or found

    def list_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the classes."""
        return {"classes": self.label_names}

    def read_images(self) -> tuple[ImageFiles, ImageFiles]:
        """List the files of both splits."""
        return self.list_images("train"), self.list_images("test")

    def list_images(self, split: str) -> ImageFiles:
        """List the files of a split; raises UserError for other classes than those of train."""
        folder, classes = self.folders[split], list(self.label_names)
        annotations = folder / "val_annotations.txt"
        if annotations.is_file() and not {*classes} <= {*list_visible_folders(folder)}:
            return read_annotations(annotations, classes)
        if split != "train":
            found = set(list_subfolders(folder))
            if absent := sorted(set(classes) - found):
                raise UserError(f"{folder} lacks {_format_classes(absent)} that train has")
            if (unseen := sorted(found - set(classes))) and self.chosen is None:
                raise UserError(f"{folder} has {_format_classes(unseen)} that train does not have")
        return list_image_files(folder, classes)

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
    """Own images: `train` and others, or the classes at once.

    Beside `train`, `test` is the test set, and `val`, `valid` or `validation` chooses the epoch in
    protocol `validation`; it is the test set if there is no `test`. Names like `Training` and
    `test_set` are the same. Where there is no test set, a fifth of each class is, the same for
    every run. Labels number the classes in the order of their names. What is not read is counted.

    Args:
        folder: Folder in DATA_DIR.
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {"image_folder": ImageInfo(2, 224, MEAN, STD)}

    def __init__(
        self, dataset_name: str = "image_folder", folder: str = "images", **kwargs: Any
    ) -> None:
        self.folder = folder
        super().__init__(dataset_name, **kwargs)
        train = self.folders["train"]
        classes = self.chosen or list_subfolders(train)
        if len(classes) < 2:
            raise UserError(f"{train} has one class: name a folder of two or more")
        found = [] if self.chosen else classes
        if found and all(map(_PLACES.fullmatch, found)):
            text = f"{train} has {format_names(found)}, which are no classes: name a folder"
            raise UserError(f"{text} of classes, or the classes in a file for data.classes")
        inside = {  # the classes of Office-31 are in amazon/images
            name: {x.name for x in (train / name).glob("images/*/") if not is_hidden(x.name)}
            or {*list_visible_folders(train / name)} - {name}
            for name in found
        }
        counts = Counter(x for names in inside.values() for x in names)
        # folds or persons with the classes inside, views of each class, or the classes once more?
        shared = sorted(x for x, n in counts.items() if x in found or n > len(classes) / 2)
        if len(shared) > 1:
            places = [name for name in found if inside[name] & {*shared}]
            raise UserError(
                f"{train} has {format_names(shared)} inside of {format_names(places)}: if"
                f" {format_names(classes)} are the classes, name them in a file for data.classes,"
                " else make one folder of images for each class"
            )
        if {*counts} - {"images"}:
            text = f"{train}: classes are {format_names(classes)}, not the folders inside of them"
            warn_once(f"{text}: {format_names(sorted(counts))}")
        self.num_classes = len(classes)

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, folder: str = "images"
    ) -> Path:
        """Find the folder; raises UserError if there is none."""
        return find_dataset(data_dir, [folder], Path.is_dir, "data.folder names it")

    @cached_property
    def folders(self) -> dict[str, Path]:
        """Folders of `train`, and of `test` and `val` where there are any."""
        root = self.find_data(self.dataset_name, self.data_dir, self.folder)
        names = list_subfolders(root)
        # classes that are named may be called like splits
        found = {} if self.chosen and {*self.chosen} <= {*names} else find_splits(root)
        if "train" in found:
            others = [x for x in names if not _guess_split(x) and list_visible_folders(root / x)]
            mixed = len(found) == 1 and any(count_images(root / name) for name in others)
            if mixed and not self.chosen:
                raise UserError(
                    f"{root} has {format_names(others)} beside {found['train'].name}: name all that"
                    " are classes in a file for data.classes, or move the others elsewhere"
                )
            if "test" not in found and "val" in found:
                found["test"] = found.pop("val")
            elif self.protocol == "test":
                found.pop("val", None)
            return found
        splits = {*map(_guess_split, names)}
        if "" not in splits and len(splits) > 1:
            text = "and no train with a folder for each class"
            raise UserError(f"{root} has {format_names(names)} {text}")
        if split := [x for x in names if any(map(_guess_split, list_visible_folders(root / x)))]:
            hint = f"put its classes in {root}/train, test" if names[1:] else "data.folder names it"
            raise UserError(f"{root / split[0]} is split: {hint}")
        return {"train": root}

    def list_data_files(self) -> Sequence[Path]:
        """Return the folder."""
        return [self.find_data(self.dataset_name, self.data_dir, self.folder)]

    @cached_property
    def validation(self) -> ImageFiles | None:
        """Images of the folder `val` beside `test`."""
        return self.list_images("val") if "val" in self.folders else None

    def read_images(self) -> tuple[ImageFiles, ImageFiles]:
        """List the files of both splits, and count those beside them."""
        root = self.find_data(self.dataset_name, self.data_dir, self.folder)
        for path in sorted(set(root.iterdir()) - set(self.folders.values())):
            count = count_images(path) if self.folders["train"] != root else 0
            if count or (path.suffix in (".txt", ".csv") and _guess_split(path.stem)):
                text = f": {count} images" if count else ""
                print(f"note: {path} is not read{text}", file=sys.stderr)
        if "test" in self.folders:
            return super().read_images()
        images = self.list_images("train")
        train, test = (
            ImageFiles(images.root, images.names[chosen], images.labels[chosen])
            for chosen in split_stratified(images.labels, 1 / 5, seed=0)
        )
        return train, test


def _read_class_list(path: Path) -> list[str]:
    found: set[str] = set()
    for line in map(str.strip, read_text_lines(path)):  # CMC's list has ten synsets in a line
        found.update(line.split() if re.fullmatch(r"(n\d{8}\s*)*", line) else [line])
    names = sorted(found)
    if len(names) < 2:
        raise UserError(f"data.classes: {path} must name two classes or more, not {len(names)}")
    return names


def _format_classes(names: list[str]) -> str:
    return f"{len(names)} of the classes ({format_names(names)})"


def list_subfolders(folder: Path) -> list[str]:
    """List the folders in a folder by name, without hidden ones; UserError if there is none."""
    if found := list_visible_folders(folder):
        return found
    raise UserError(f"{folder} has no folder for each class, with the images inside")


def find_splits(folder: Path) -> dict[str, Path]:
    """Find the folder of the shortest name for each split that has folders of classes."""
    found: dict[str, Path] = {}
    for name in sorted(list_visible_folders(folder), key=lambda x: (len(x), x)):
        if (split := _guess_split(name)) and list_visible_folders(folder / name):
            first = found.setdefault(split, folder / name).name
            if len(first) == len(name) and first != name:
                raise UserError(f"{folder} has {first} and {name}: join them, or move one away")
    if more := found.pop("eval", None):  # Food-11's test set; it validates beside a `test`
        found.setdefault("val" if "test" in found else "test", more)
    return found


def _guess_split(name: str) -> str:
    """Return the split that the name of a folder means; "" for a class."""
    match = _SPLIT.fullmatch(name)
    return (match.lastgroup or "") if match else ""


def list_image_files(folder: Path, classes: list[str]) -> ImageFiles:
    """List the images of the classes, and count what is no image or in none of the classes."""
    found: list[tuple[str, int]] = []
    ignored, start = Counter[str](), len(f"{folder}/")

    def is_image(path: str) -> bool:
        kind = "hidden" if is_hidden(path[start:]) else os.path.splitext(path)[1].lower()
        if kind not in IMAGE_SUFFIXES:
            ignored[kind or "without suffix"] += 1
        return kind in IMAGE_SUFFIXES

    for number, name in enumerate(classes):
        for place, folders, names in os.walk(folder / name, followlinks=True):
            folders[:] = [*list_visible_folders(place), *filter(is_hidden, folders)]
            paths = (os.path.join(place, x) for x in names)
            found += [(path, number) for path in paths if is_image(path)]
    found.sort(key=lambda one: (one[1], os.path.split(one[0])))
    others = "".join(f", but {count} {kind}" for kind, count in ignored.most_common(1))
    if empty := sorted(set(classes) - {classes[number] for _, number in found}):
        raise UserError(f"{folder} has no image in {_format_classes(empty)}{others}")
    for path in folder.iterdir():
        if is_hidden(path.name):
            ignored["hidden"] += count_images(path)
        elif path.is_file():
            ignored["outside of the classes"] += count_images(path)
    if counts := ", ".join(f"{count} {kind}" for kind, count in sorted((+ignored).items())):
        print(f"note: files in {folder} that are not read: {counts}", file=sys.stderr)
    warn_copies([path for path, _ in found])
    note_frames(path for path, _ in found)
    return ImageFiles(folder, [path[start:] for path, _ in found], [label for _, label in found])
