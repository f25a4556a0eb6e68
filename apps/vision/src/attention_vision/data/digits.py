"""The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn: no download."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.data.datamodule import split_stratified
from experiment_kit.errors import UserError

from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.image_sources import InMemoryImages


class Digits(VisionData):
    """Optical digits of UCI, resized to `image_size`, 64 pixels by default.

    There is no official split: a fifth of each class, the same for every seed, is the test set.
    https://archive.ics.uci.edu/dataset/80
    """

    DATASETS: ClassVar[Mapping[str, ImageInfo]] = {
        "digits": ImageInfo(10, 64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    }

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the file within scikit-learn; raises UserError if it is not installed."""
        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise UserError("scikit-learn, which contains the digits, is not installed")
        return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"

    def read_images(self) -> tuple[InMemoryImages, InMemoryImages]:
        """Read four fifths for training and one for testing."""
        from sklearn.datasets import load_digits  # takes 1 s, which listings need not spend

        images, labels = (load_digits()[key] for key in ("images", "target"))
        gray = (images * (255 / 16)).round().astype(np.uint8)
        pixels = np.repeat(gray[..., np.newaxis], 3, axis=-1)  # (N, 8, 8, 3)
        splits = split_stratified(labels, 0.2, seed=0)
        train, test = (InMemoryImages(pixels[rows], labels[rows]) for rows in splits)
        return train, test
