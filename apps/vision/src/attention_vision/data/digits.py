"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships: real data, no download."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.data.split import stratified
from experiment_kit.errors import UserError

from attention_vision.data.base import Facts, VisionData
from attention_vision.data.sources import Pixels


class Digits(VisionData):
    """UCI's optical digits, resized to 64 pixels unless `image_size` says otherwise.

    They come without an official split: a fifth of each class, the same for every seed, is the
    test set. https://archive.ics.uci.edu/dataset/80

    >>> data = Digits("digits")
    >>> data.num_classes, data.image_size
    (10, 64)
    """

    known: ClassVar[Mapping[str, Facts]] = {
        "digits": Facts(10, 64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    }

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where scikit-learn keeps them; raises UserError where it is not installed."""
        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise UserError("scikit-learn, which ships the digits, is not installed")
        return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"

    def read(self) -> tuple[Pixels, Pixels]:
        """Four fifths to train on, and one to test."""
        from sklearn.datasets import load_digits  # 1 s: not for those who only look

        images, labels = (load_digits()[key] for key in ("images", "target"))
        grey = (images * (255 / 16)).round().astype(np.uint8)
        pixels = np.repeat(grey[..., np.newaxis], 3, axis=-1)
        train, test = (
            Pixels(pixels[part], labels[part]) for part in stratified(labels, 0.2, seed=0)
        )
        return train, test
