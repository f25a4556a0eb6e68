"""Own images: a folder with a folder of images for each class."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from experiment_kit.data.datamodule import find_dataset, split_stratified

from attention_vision.data.base import ImageInfo
from attention_vision.data.image_folders import MEAN, STD, ImageFolders, list_files, list_subfolders
from attention_vision.data.image_sources import ImageFiles


class ImageFolder(ImageFolders):
    """Images of any `folder` of DATA_DIR: `train` and `val`, or the classes at once.

    A folder without `train` is split: a fifth of each class is the test set, the same for every
    run. Labels number the classes in the order of their names.
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
        if train.name == "train" and (train.parent / "val").is_dir():
            self._check_classes(train.parent / "val", classes)
            return images, list_files(train.parent / "val", classes)
        kept, test = split_stratified(images.labels, 1 / 5, seed=0)
        return _select_files(images, kept), _select_files(images, test)


def _select_files(images: ImageFiles, indices: np.ndarray) -> ImageFiles:
    names = [os.fsdecode(name) for name in images.names[indices]]
    return ImageFiles(images.root, names, images.labels[indices])
