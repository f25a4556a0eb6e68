"""CIFAR in its binary version: records of one or two labels and 3 x 32 x 32 bytes.

https://www.cs.toronto.edu/~kriz/cifar.html; torchvision reads the pickled version only.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.errors import UserError

from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.image_sources import InMemoryImages

_IMAGE_BYTES = 3 * 32 * 32


class _Release(NamedTuple):
    folder: str
    archive: str  # the folder of the extracted archive
    train: tuple[str, ...]
    test: str
    label_bytes: int  # before the image; the last one is the class


_RELEASES = {
    "CIFAR-10": _Release(
        "cifar-10-batches-bin",
        "cifar-10-binary",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
        1,
    ),
    # a coarse label comes first
    "CIFAR-100": _Release("cifar-100-binary", "cifar-100-binary", ("train.bin",), "test.bin", 2),
}


class CIFAR(VisionData):
    """CIFAR-10 or CIFAR-100, 50,000 images to train and 10,000 to test, or a subset of each.

    Normalized by the mean and standard deviation of the training images, for CIFAR-100 as in
    https://github.com/xxxnell/how-do-vits-work.
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {
        "CIFAR-10": ImageInfo(10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "CIFAR-100": ImageInfo(100, 32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    }

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the folder of a release; raises UserError if there is none."""
        release, download = _RELEASES[dataset_name], dataset_name.lower().replace("-", "")
        folders = [f"{top}{release.folder}" for top in ("", "vision/", f"{release.archive}/")]
        hint = f"`make data DATA={download}` downloads it"

        def is_release(folder: Path) -> bool:
            return (folder / release.train[0]).is_file()

        return find_dataset(data_dir, folders, is_release, hint)

    def read_images(self) -> tuple[InMemoryImages, InMemoryImages]:
        """Read both splits; a note on standard error says if either is a subset."""
        release = _RELEASES[self.dataset_name]
        folder = self.find_data(self.dataset_name, self.data_dir)
        train = [folder / file for file in release.train if (folder / file).is_file()]
        splits = []
        for paths in (train, [folder / release.test]):
            files = [read_records(path, release.label_bytes, self.num_classes) for path in paths]
            pixels, labels = zip(*files, strict=True)
            splits.append(InMemoryImages(np.concatenate(pixels), np.concatenate(labels)))
        counts = tuple(len(split.labels) for split in splits)
        if counts != (50_000, 10_000):
            text = f"note: {folder} has {counts[0]} of 50,000 training and {counts[1]} of 10,000"
            print(f"{text} test images", file=sys.stderr)
        return splits[0], splits[1]


def read_records(path: Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read pixels (N, 32, 32, 3) and labels (N,) of a file; the last label byte is the class.

    Raises UserError for a file that is absent, empty, truncated, or has a label out of range.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    data, record = np.fromfile(path, np.uint8), label_bytes + _IMAGE_BYTES
    if not len(data) or len(data) % record:
        raise UserError(f"{path} has {len(data)} bytes, not one or more records of {record} bytes")
    rows = data.reshape(-1, record)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= num_classes:
        row = int((labels >= num_classes).argmax())
        raise UserError(f"{path}: record {row} has label {labels[row]}, not 0 to {num_classes - 1}")
    planes = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels
