"""ImageNet and its relatives: a folder of images for each class, in `train` and in `val`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from experiment_kit.data.local import locate
from experiment_kit.errors import UserError
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

from attention_vision.data.base import Facts, VisionData
from attention_vision.data.sources import Files, Part, Source, Substituting, readable

# of ImageNet's training images; the papers use them for its subsets too
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Nobody who reports ImageNet-100 here says which classes it has. These are those of CMC,
# github.com/HobbitLong/CMC/blob/master/imagenet100.txt, the list most in use (solo-learn has it).
IMAGENET_100 = Path(__file__).with_name("imagenet_100.txt")


class _Place(NamedTuple):
    folders: tuple[str, ...]
    download: str


_PLACES = {
    "ImageNet-1k": _Place(("imagenet", "imagenet-1k", "."), "imagenet"),
    "ImageNet-100": _Place(("imagenet-100", "imagenet", "imagenet-1k", "."), "imagenet"),
    "Tiny-ImageNet": _Place(
        ("tiny-imagenet-200", "vision/tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        "tiny_imagenet",
    ),
}


class ImageFolders(VisionData):
    """ImageNet-1k, ImageNet-100 or Tiny-ImageNet, where `val` takes the part of the test set.

    `classes` is a file with the names of the class folders to use, for another subset than
    ImageNet-100's own. Labels number the classes in the order of their names. Files that cannot
    be read are named and counted: in training the next one stands in, and of what is scored, they
    are left out. For that, each image to be scored is read once before (a minute for 50,000);
    without `verify` one that cannot be read ends the run.

    Raises UserError where folders are absent or empty or have other classes than expected.

    >>> ImageFolders("ImageNet-100").num_classes
    100
    """

    known: ClassVar[Mapping[str, Facts]] = {
        "ImageNet-1k": Facts(1000, 224, _MEAN, _STD),
        "ImageNet-100": Facts(100, 224, _MEAN, _STD),
        "Tiny-ImageNet": Facts(200, 64, _MEAN, _STD),
    }

    def __init__(
        self, name: str, classes: str | None = None, verify: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(name, **kwargs)
        self.verify, self.listing = verify, Path(classes) if classes else None
        if name == "ImageNet-100":
            self.listing = self.listing or IMAGENET_100
        self.chosen = _listed(self.listing) if self.listing else None
        self.num_classes = len(self.chosen) if self.chosen else self.facts.classes

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder that holds `train` and `val`; raises UserError where there is none."""
        return _folder(name, None)

    def read(self) -> tuple[Files, Files]:
        """List the files of both splits."""
        root = _folder(self.problem, self.data_dir)
        train, val = root / "train", root / "val"
        classes = self._classes(train)
        annotations = val / "val_annotations.txt"
        if annotations.is_file():
            return _files(train, classes), _annotated(annotations, classes)
        self._agree(val, classes)
        return _files(train, classes), _files(val, classes)

    def _classes(self, train: Path) -> list[str]:
        found = _subfolders(train)
        if self.chosen is None and len(found) != self.num_classes:
            raise UserError(
                f"{train} has {len(found)} class folders, and {self.problem} has"
                f" {self.num_classes}: name those to use in a file, and give it as data.classes"
            )
        if absent := sorted(set(self.chosen or ()) - set(found)):
            raise UserError(f"{train} lacks {_some(absent)} of {self.listing}")
        return sorted(self.chosen or found)

    def _agree(self, val: Path, classes: list[str]) -> None:
        found = set(_subfolders(val))
        if absent := sorted(set(classes) - found):
            raise UserError(f"{val} lacks {_some(absent)} that train has")
        if (unseen := sorted(found - set(classes))) and self.chosen is None:
            raise UserError(f"{val} has {_some(unseen)} that train does not have")

    def _make(self, name: str) -> None:
        super()._make(name)
        if name != "train":
            # files come class by class: the first batches of validation would show one alone
            val = self.parts.get("val", self.parts[name])
            order = np.random.default_rng(0).permutation(val.indices)
            self.parts["val"] = Part(val.source, order, val.transform)

    def training_part(self, source: Source, indices: np.ndarray) -> Part:
        """Images to be augmented, readable ones standing in for others."""
        transform = super().training_part(source, indices).transform
        return Substituting(cast(Files, source), indices, transform)

    def scored_part(self, source: Source, indices: np.ndarray) -> Part:
        """Images to be scored, all of them readable."""
        if self.verify:
            indices = readable(cast(Files, source), indices)
        return super().scored_part(source, indices)

    def teardown(self, stage: str) -> None:
        """Say how many images of training were replaced."""
        part = self.parts.get("train")
        if stage == "fit" and isinstance(part, Substituting) and (bad := int(part.bad.sum())):
            print(f"warning: {bad} of {len(part)} training images were replaced", file=sys.stderr)


def _folder(name: str, data_dir: str | None) -> Path:
    folders, download = _PLACES[name]
    hint = f"see `python -m attention_vision.download {download}`"

    def is_it(folder: Path) -> bool:
        return all((folder / split).is_dir() for split in ("train", "val"))

    return locate(data_dir, folders, is_it, hint)


def _listed(path: Path) -> list[str]:
    try:
        names = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes: {path} cannot be read: {error}") from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"data.classes: {path} names {_some(twice)} twice")
    if len(names) < 2:
        raise UserError(f"data.classes: {path} must name two classes or more, not {len(names)}")
    return names


def _some(names: list[str]) -> str:
    more = ", ..." if len(names) > 3 else ""
    return f"{len(names)} of the classes ({', '.join(names[:3])}{more})"


def _subfolders(folder: Path) -> list[str]:
    try:
        return find_classes(folder)[0]
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no folder for each class; it must have one, with the images inside"
        ) from None


def _files(folder: Path, classes: list[str]) -> Files:
    numbers = {name: number for number, name in enumerate(classes)}
    try:
        found = make_dataset(folder, numbers, IMG_EXTENSIONS)
    except FileNotFoundError as error:
        empty = str(error).partition("classes ")[2].partition(". ")[0].split(", ")
        raise UserError(f"{folder} has no image in {_some(empty)}") from None
    paths, labels = zip(*found, strict=True)
    start = len(f"{folder}/")
    return Files(folder, [path[start:] for path in paths], labels)


def _annotated(path: Path, classes: list[str]) -> Files:
    """Tiny-ImageNet's: a line for each image with its name and its class, among other things."""
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [line.split("\t") for line in path.read_text().splitlines() if line]
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or row[1] not in numbers:
            raise UserError(f"{path}: line {number} names no class that train has")
    if not rows:
        raise UserError(f"{path} is empty")
    names = [f"images/{row[0]}" for row in rows]
    return Files(path.parent, names, [numbers[row[1]] for row in rows])
