"""Labelled images in memory or in files, the parts of them that a model sees, and their split."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from experiment_kit.errors import UserError
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import Dataset

from attention_vision.data.augment import Transform

NAMED = 5  # unreadable files that are told one by one


class Source(Protocol):
    """Labels (N,), and an image for each."""

    labels: np.ndarray

    def image(self, index: int) -> Image.Image:
        """The image as RGB."""
        ...


class Pixels:
    """Images that stay in memory: pixels (N, H, W, 3) of bytes, labels (N,)."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def image(self, index: int) -> Image.Image:
        """The image as RGB."""
        return Image.fromarray(self.pixels[index])


class Unreadable(UserError):
    """An image file that cannot be decoded."""


class Files:
    """Image files under a folder, by their names within it, and labels (N,)."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int]) -> None:
        self.root = root
        # one array instead of a million strings: those would be copied into every worker
        self.names = np.array([os.fsencode(name) for name in names])
        self.labels = np.asarray(labels, dtype=np.int64)

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.root / os.fsdecode(self.names[index])

    def image(self, index: int, thumbnail: bool = False) -> Image.Image:
        """The image as RGB, the smallest of its decoder if a thumbnail will do.

        Raises Unreadable for a file that is not a whole image.
        """
        try:
            with Image.open(self.path(index)) as image:
                if thumbnail:
                    image.draft("RGB", (1, 1))
                return image.convert("RGB")
        except Exception as error:  # whatever a damaged file makes a decoder raise
            raise Unreadable(f"{self.path(index)} cannot be read: {error}") from error


class Part(Dataset[tuple[Tensor, int]]):
    """Some images of a source: (3, S, S) after the transform, and the label."""

    def __init__(self, source: Source, indices: np.ndarray, transform: Transform) -> None:
        self.source, self.indices, self.transform = source, indices, transform

    @property
    def labels(self) -> np.ndarray:
        """Labels (N,)."""
        return self.source.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        index = self.indices[item]
        return self.transform(self.source.image(index)), int(self.source.labels[index])


class Substituting(Part):
    """A part for training, in which the next readable file stands in for an unreadable one.

    Raises UserError where none can be read. The first few are named on standard error.
    """

    source: Files

    def __init__(self, source: Files, indices: np.ndarray, transform: Transform) -> None:
        super().__init__(source, indices, transform)
        self.bad = torch.zeros(len(indices), dtype=torch.bool).share_memory_()  # by the workers
        self._readable(0)  # here rather than in a worker, whose errors come with a traceback

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        place, image = self._readable(item)
        return self.transform(image), int(self.source.labels[self.indices[place]])

    def _readable(self, item: int) -> tuple[int, Image.Image]:
        for place in chain(range(item, len(self)), range(item)):
            if self.bad[place]:
                continue
            try:
                return place, self.source.image(self.indices[place])
            except Unreadable as error:
                self._note(place, error)
        raise UserError(f"none of the {len(self)} images under {self.source.root} can be read")

    def _note(self, place: int, error: Unreadable) -> None:
        self.bad[place] = True
        if self.bad.sum() <= NAMED:
            _warn(f"{error}; the next readable image of training stands in for it")


def readable(source: Files, indices: np.ndarray) -> np.ndarray:
    """Those of the indices whose files can be read; the others are named and counted.

    Raises UserError where none can.
    """

    def reason(index: int) -> str:
        try:
            source.image(index, thumbnail=True)
        except Unreadable as error:
            return str(error)
        return ""

    console = Console(stderr=True)
    looks: dict[str, Any] = {
        "console": console,
        "transient": True,
        "disable": not console.is_terminal,
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        every = pool.map(reason, indices)
        reasons = np.array([*track(every, f"reading {source.root}", len(indices), **looks)])
    bad = reasons != ""
    if bad.all():
        raise UserError(f"none of the {len(indices)} images under {source.root} can be read")
    for text in reasons[bad][:NAMED]:
        _warn(f"{text}; it is left out")
    if bad.any():
        _warn(f"{bad.sum()} of {len(indices)} images under {source.root} are left out")
    return indices[~bad]


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
