"""Image: CIFAR-10 in grey, read pixel by pixel.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.errors import UserError

from attention_sequence.data.base import Facts, Part, PixelData, locate
from attention_sequence.data.rows import Examples

_HINT = "`make data-cifar` downloads it"
_TEST = "test_batch.bin"
_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_RECORD = 1 + 3 * 32 * 32  # a label, then three planes


class Image(PixelData):
    r"""Grey images as 1,024 tokens, row by row, and their classes.

    .. math:: \lfloor 255.5 \, (0.2989 R + 0.5870 G + 0.1140 B) / 255 \rfloor

    The last `share` of the training images, a tenth as published, is the development set: 45,000
    to train, 5,000 to choose the checkpoint and 10,000 to test, or a subset of each.

    Source: https://github.com/google-research/long-range-arena

    >>> data = Image("cifar10")
    >>> data.num_features, data.num_classes, data.max_length
    (512, 10, 1024)
    """

    known: ClassVar[Mapping[str, Facts]] = {"cifar10": Facts(10, 256, 1024, 1024, 512)}

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the binary version; raises UserError where there is none."""
        return _folder(None)

    def read(self, part: Part) -> Examples:
        """The images of a part; that it is of a subset is told on standard error."""
        folder = _folder(self.data_dir)
        present = [folder / file for file in _TRAIN if (folder / file).is_file()]
        files = [read(path) for path in ([folder / _TEST] if part == "test" else present)]
        rows, labels = (np.concatenate(column) for column in zip(*files, strict=True))
        whole = 10_000 if part == "test" else 50_000
        if len(labels) != whole and part != "val":
            print(f"note: {folder} has {len(labels)} of {whole} images to {part}", file=sys.stderr)
        if part == "test":
            return Examples(rows, labels)
        border = len(labels) - round(self.share * len(labels))
        if not 0 < border < len(labels):
            raise UserError(f"{folder} has too few images to hold a share of {self.share} back")
        chosen = slice(border) if part == "train" else slice(border, None)
        return Examples(rows[chosen], labels[chosen])


def _folder(data_dir: str | None) -> Path:
    folder = "cifar-10-batches-bin"
    places = [folder, f"vision/{folder}", f"cifar-10-binary/{folder}"]
    return locate(data_dir, places, lambda place: (place / _TRAIN[0]).is_file(), _HINT)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels (S, 1024) and labels (S,) of a file.

    Raises UserError for a file that is absent, empty, cut off, or has a label out of range.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % _RECORD:
        raise UserError(f"{path} has {len(data)} bytes, not one or more records of {_RECORD} bytes")
    records = data.reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        row = int((labels > 9).argmax())
        raise UserError(f"{path}: record {row} has label {labels[row]}, not 0 to 9")
    return grey(records[:, 1:].reshape(-1, 3, 32 * 32)), labels


def grey(planes: np.ndarray) -> np.ndarray:
    """The brightness of red, green and blue as a whole number; the published one, no rounding.

    Shapes: (S, 3, P) of bytes -> (S, P) of bytes.

    >>> grey(np.array([[[255, 0], [255, 1], [255, 0]]], np.uint8)).tolist()
    [[255, 0]]
    """
    red, green, blue = (planes[:, place].astype(np.float64) for place in range(3))
    light = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    return (255.5 * light / 255).astype(np.uint8)
