"""Labeled images in memory or in files, and data sets that draw from them."""

import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.image_files import IMAGE_SUFFIXES, UnreadableImageError, load_image
from experiment_kit.errors import UserError
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import Dataset

from attention_vision.data.augment import Transform

_TWIN = re.compile(r"(?i)(.+?)[-_ ]+(mask|copy|\(\d\))")  # a_mask, a - Copy, a (1)
MAX_NAMED = 5  # unreadable files that get a warning of their own


class ImageSource(Protocol):
    """Labels (N,), and an image for each."""

    labels: np.ndarray

    def load_image(self, index: int) -> Image.Image:
        """Load an image as RGB."""
        ...


class InMemoryImages:
    """Images in memory: pixels (N, H, W, 3) of bytes, labels (N,)."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def load_image(self, index: int) -> Image.Image:
        """Load an image as RGB."""
        return Image.fromarray(self.pixels[index])


class ImageFiles:
    """Image files under a folder, by their names within it, and labels (N,)."""

    def __init__(self, root: Path, names: Sequence[str | bytes], labels: Sequence[int]) -> None:
        self.root = root
        # one array instead of a million strings, which every worker would copy
        self.names = np.array([os.fsencode(name) for name in names])
        self.labels = np.asarray(labels, dtype=np.int64)

    def load_image(self, index: int, thumbnail: bool = False) -> Image.Image:
        """Load an image as RGB; raises UnreadableImageError for a file that is not whole."""
        return load_image(self.root / os.fsdecode(self.names[index]), thumbnail)


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Some images of a source: (3, S, S) after the transform, and the label."""

    def __init__(self, source: ImageSource, indices: np.ndarray, transform: Transform) -> None:
        self.source, self.indices, self.transform = source, indices, transform

    @property
    def labels(self) -> np.ndarray:
        """Labels (N,)."""
        return self.source.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        index = self.indices[item]
        return self.transform(self.source.load_image(index)), int(self.source.labels[index])


class SkipUnreadable(ImageDataset):
    """Images for training; the next readable file replaces an unreadable one."""

    source: ImageFiles

    def __init__(self, source: ImageFiles, indices: np.ndarray, transform: Transform) -> None:
        super().__init__(source, indices, transform)
        # in shared memory, where the workers mark unreadable files
        self.bad = torch.zeros(len(indices), dtype=torch.bool).share_memory_()
        self._load_readable(0)  # here and not in a worker, whose errors come with a traceback

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        position, image = self._load_readable(item)
        return self.transform(image), int(self.source.labels[self.indices[position]])

    def _load_readable(self, item: int) -> tuple[int, Image.Image]:
        for position in chain(range(item, len(self)), range(item)):
            if self.bad[position]:
                continue
            try:
                return position, self.source.load_image(self.indices[position])
            except UnreadableImageError as error:
                self.bad[position] = True
                if self.bad.sum() <= MAX_NAMED:
                    _print_warning(f"{error}; training uses the next readable image instead")
        raise UserError(f"none of the {len(self)} images under {self.source.root} can be read")


def count_images(path: Path) -> int:
    """Count the images in a folder; 1 for an image itself."""
    files = [file for *_, names in os.walk(path) for file in names] or [path.name]
    return sum(file.lower().endswith(IMAGE_SUFFIXES) for file in files)


def read_annotations(path: Path, classes: list[str]) -> ImageFiles:
    """Read Tiny-ImageNet's list: each line has the name and the class of an image, and a box."""
    numbers = {name: number for number, name in enumerate(classes)}
    lines = (line.split("\t") for line in read_text_lines(path))
    rows = [row for row in lines if len(row) > 1 and row[1] in numbers]
    names = [f"images/{row[0]}" for row in rows]
    return ImageFiles(path.parent, names, [numbers[row[1]] for row in rows])


def warn_copies(paths: Sequence[str]) -> None:
    """Warn of images whose names say that they are masks or copies of others."""
    stems = {os.path.splitext(path)[0] for path in paths}
    likely = (_TWIN.fullmatch(stem) for stem in stems if stem.endswith(("mask", "opy", ")")))
    if twins := [match[0] for match in likely if match and match[1] in stems]:
        _print_warning(f"{len(twins)} images are named as masks or copies of others: {min(twins)}")


def drop_unreadable(source: ImageFiles, indices: np.ndarray) -> np.ndarray:
    """Return the indices of files that can be read; name and count the others."""

    def find_error(index: int) -> str:
        try:
            source.load_image(index, thumbnail=True)
        except UnreadableImageError as error:
            return str(error)
        return ""

    console = Console(stderr=True)
    display: Any = {"console": console, "transient": True, "disable": not console.is_terminal}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(find_error, indices)
        errors = np.array([*track(found, f"reading {source.root}", len(indices), **display)])
    bad = errors != ""
    if bad.all():
        raise UserError(f"none of the {len(indices)} images under {source.root} can be read")
    for text in errors[bad][:MAX_NAMED]:
        _print_warning(f"{text}; it is left out")
    if bad.any():
        _print_warning(f"{bad.sum()} of {len(indices)} images under {source.root} are left out")
    return indices[~bad]


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
