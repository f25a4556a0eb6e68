"""CIFAR in its binary version: records of a label, or two, and 3 x 32 x 32 bytes.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.local import locate
from experiment_kit.errors import UserError

from attention_vision.data.base import Facts, VisionData
from attention_vision.data.sources import Pixels

_IMAGE = 3 * 32 * 32


class _Version(NamedTuple):
    folder: str
    archive: str  # under this name, it is unpacked into a folder of its own
    train: tuple[str, ...]
    test: str
    labels: int  # bytes before the image; the last one is the class


_VERSIONS = {
    "CIFAR-10": _Version(
        "cifar-10-batches-bin",
        "cifar-10-binary",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
        1,
    ),
    # a coarse label comes first
    "CIFAR-100": _Version("cifar-100-binary", "cifar-100-binary", ("train.bin",), "test.bin", 2),
}


class CIFAR(VisionData):
    """CIFAR-10 or CIFAR-100, 50,000 images to train and 10,000 to test, or a subset of each.

    Normalised by the mean and standard deviation of the training images, for CIFAR-100 as
    https://github.com/xxxnell/how-do-vits-work has them.

    >>> CIFAR("CIFAR-100").num_classes
    100
    """

    known: ClassVar[Mapping[str, Facts]] = {
        "CIFAR-10": Facts(10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "CIFAR-100": Facts(100, 32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    }

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of a version; raises UserError where there is none."""
        return _folder(name, None)

    def read(self) -> tuple[Pixels, Pixels]:
        """Both splits; a subset is told on standard error."""
        version, folder = _VERSIONS[self.problem], _folder(self.problem, self.data_dir)
        present = [folder / file for file in version.train if (folder / file).is_file()]
        train, test = (
            _joined([read(path, version.labels, self.num_classes) for path in paths])
            for paths in (present, [folder / version.test])
        )
        counts = len(train.labels), len(test.labels)
        if counts != (50_000, 10_000):
            text = f"note: {folder} has {counts[0]} of 50,000 training and {counts[1]} of 10,000"
            print(f"{text} test images", file=sys.stderr)
        return train, test


def _joined(parts: list[Pixels]) -> Pixels:
    pixels, labels = ([getattr(part, name) for part in parts] for name in ("pixels", "labels"))
    return Pixels(np.concatenate(pixels), np.concatenate(labels))


def _folder(name: str, data_dir: str | None) -> Path:
    version = _VERSIONS[name]
    places = [f"{top}{version.folder}" for top in ("", "vision/", f"{version.archive}/")]
    hint = f"`python -m attention_vision.download {name.lower().replace('-', '')}` downloads it"
    return locate(data_dir, places, lambda folder: (folder / version.train[0]).is_file(), hint)


def read(path: Path, labels: int, classes: int) -> Pixels:
    """Read a file of records: `labels` bytes, the last of them the class, then the image.

    Raises UserError for a file that is absent, empty, cut off, or has a label out of range.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    data, record = np.fromfile(path, np.uint8), labels + _IMAGE
    if not len(data) or len(data) % record:
        raise UserError(f"{path} has {len(data)} bytes, not one or more records of {record} bytes")
    rows = data.reshape(-1, record)
    found = rows[:, labels - 1].astype(np.int64)
    if found.max() >= classes:
        row = int((found >= classes).argmax())
        raise UserError(f"{path}: record {row} has label {found[row]}, not 0 to {classes - 1}")
    planes = rows[:, labels:].reshape(-1, 3, 32, 32)
    return Pixels(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), found)
