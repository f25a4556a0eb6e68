"""CIFAR in its binary version; torchvision reads the pickled version only."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.data.image_files import read_cifar_file

from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.image_sources import InMemoryImages


class _Release(NamedTuple):
    folder: str
    archive: str  # the folder of the extracted archive
    train: tuple[str, ...]
    test: str
    labels: int  # a byte each, before the image; the last one is the class


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
        hint = f"`allpass data {download}` downloads it"
        return find_dataset(data_dir, folders, lambda x: (x / release.train[0]).is_file(), hint)

    def read_images(self) -> tuple[InMemoryImages, InMemoryImages]:
        """Read both splits; a note on standard error says if either is a subset."""
        release = _RELEASES[self.dataset_name]
        folder = self.find_data(self.dataset_name, self.data_dir)
        train = [folder / file for file in release.train if (folder / file).is_file()]
        splits = []
        for paths in (train, [folder / release.test]):
            read = partial(read_cifar_file, labels=release.labels, num_classes=self.num_classes)
            planes, labels = map(np.concatenate, zip(*map(read, paths), strict=True))
            pixels = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            splits.append(InMemoryImages(np.ascontiguousarray(pixels), labels))
        counts = tuple(len(split.labels) for split in splits)
        if counts != (50_000, 10_000):
            text = f"note: {folder} has {counts[0]} of 50,000 training and {counts[1]} of 10,000"
            print(f"{text} test images", file=sys.stderr)
        return splits[0], splits[1]
