"""Image: CIFAR-10 in grey, read pixel by pixel.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

import sys
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from experiment_kit.data.image_files import read_cifar_file

from attention_sequence.data.long_range import Examples, LongRangeData, TaskInfo

_TEST = "test_batch.bin"
_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_RECORD = 1 + 3 * 32 * 32  # bytes: a label, then three color planes


class Image(LongRangeData):
    r"""Grey images as 1,024 tokens, row by row, and their classes.

    .. math:: \lfloor 255.5 \, (0.2989 R + 0.5870 G + 0.1140 B) / 255 \rfloor

    The last `val_fraction` of the training images, a tenth as published, is the development set:
    45,000 to train, 5,000 to choose the checkpoint and 10,000 to test, or a subset of each.

    Source: https://github.com/google-research/long-range-arena
    """

    DATASETS: ClassVar[Mapping[str, TaskInfo]] = {"cifar10": TaskInfo(10, 256, 1024, 1024, 512)}
    FOLDERS = tuple(
        f"{parent}cifar-10-batches-bin" for parent in ("", "vision/", "cifar-10-binary/")
    )
    MARKERS = (_TRAIN[0],)
    HINT = "`allpass data image` downloads it"
    IS_IMAGE = True

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the images of both splits, without those of the published development set."""
        folder = cls.find_data(dataset_name, data_dir)
        sizes = {path.name: path.stat().st_size // _RECORD for path in folder.glob("*.bin")}
        train = sum(sizes.get(name, 0) for name in _TRAIN)
        return {"train": train - round(0.1 * train), "test": sizes.get(_TEST, 0)}

    def read_examples(self, split: str) -> Examples:
        """Read the images of a split; note a subset of CIFAR-10 on standard error."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        present = [folder / name for name in _TRAIN if (folder / name).is_file()]
        paths = [folder / _TEST] if split == "test" else present
        files = [read_cifar_file(path, 1, 10) for path in paths]
        pixels = np.concatenate([convert_to_grey(planes) for planes, _ in files])
        labels = np.concatenate([classes for _, classes in files])
        total = 10_000 if split == "test" else 50_000
        if len(labels) != total and split != "val":
            print(f"note: {folder} has {len(labels)} of {total} images to {split}", file=sys.stderr)
        if split == "test":
            return Examples(pixels, labels)
        border = len(labels) - round(self.val_fraction * len(labels))
        chosen = slice(border) if split == "train" else slice(border, None)
        return Examples(pixels[chosen], labels[chosen])


def convert_to_grey(planes: np.ndarray) -> np.ndarray:
    """Return the brightness of red, green and blue, rounded down as in the published code.

    Shapes: (S, 3, P) of bytes -> (S, P) of bytes.
    """
    red, green, blue = (planes[:, plane].astype(np.float64) for plane in range(3))
    light = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    return (255.5 * light / 255).astype(np.uint8)
