"""Pathfinder: are two points of a drawing joined by a dashed path? Read pixel by pixel.

https://arxiv.org/abs/1805.08315
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from experiment_kit.errors import UserError
from rich.console import Console
from rich.progress import track

from attention_sequence.data.base import RELEASE, Facts, Part, PixelData, locate
from attention_sequence.data.rows import Examples

CACHE = Path("runs/data")
_SIDE = 32
_SPLIT = 0  # the seed of the split, the same for every run: the test set must not change
_HINT = f"{RELEASE} has it, `python -m attention_sequence.generate pathfinder` makes it"
_TASK = Facts(2, 256, _SIDE**2, _SIDE**2, 512)


class Drawing(NamedTuple):
    """A file, its size in bytes, when it was changed, and whether its points are joined."""

    path: Path
    size: int
    changed: int
    label: int


class Pathfinder(PixelData):
    """Drawings of 32 x 32 grey pixels as 1,024 tokens, row by row, and whether a path joins.

    `name` is the folder of a length of the path: 14 is the published one. 80 % of the drawings
    are trained on, 10 % choose the checkpoint and 10 % test, by a shuffle that is the same for
    every run. They are decoded once, into a file under `runs/data` that is made anew where any
    drawing has changed. Empty files, of which the release has a few, are left out and counted.

    Source: https://github.com/google-research/long-range-arena

    >>> data = Pathfinder("curv_contour_length_14")
    >>> data.num_features, data.num_classes, data.max_length
    (512, 2, 1024)
    """

    known: ClassVar[Mapping[str, Facts]] = {
        "curv_contour_length_14": _TASK,
        "curv_contour_length_9": _TASK,
        "curv_baseline": _TASK,
    }

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the drawings; raises UserError where there is none."""
        return _folder(name, None)

    @cached_property
    def drawings(self) -> np.ndarray:
        """Labels and pixels (S, 1 + 1024) on disk."""
        folder = _folder(self.problem, self.data_dir)
        listed = list(listing(folder))
        whole = [drawing for drawing in listed if drawing.size]
        if len(whole) < len(listed):
            empty = len(listed) - len(whole)
            print(f"note: {empty} of {len(listed)} drawings in {folder} are empty", file=sys.stderr)
        if len(whole) < 10:
            raise UserError(f"{folder} has {len(whole)} drawings; a tenth to test takes ten")
        return cached(whole)

    def read(self, part: Part) -> Examples:
        """The drawings of a part."""
        count = len(self.drawings)
        borders = {"train": (0, 8), "val": (8, 9), "test": (9, 10)}
        begin, end = (count * tenths // 10 for tenths in borders[part])
        chosen = np.sort(np.random.default_rng(_SPLIT).permutation(count)[begin:end])
        return Examples(_Chosen(self.drawings, chosen), self.drawings[chosen, 0].astype(np.int64))


class _Chosen:
    def __init__(self, drawings: np.ndarray, chosen: np.ndarray) -> None:
        self.drawings, self.chosen = drawings, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.drawings[self.chosen[index], 1:]


def _folder(name: str, data_dir: str | None) -> Path:
    places = [f"pathfinder32/{name}", name]
    return locate(data_dir, places, lambda folder: (folder / "metadata").is_dir(), _HINT)


def listing(folder: Path) -> Iterator[Drawing]:
    """The drawings that the files in `metadata` name, in their order.

    A line is a folder, a file, a number, a label, and more. Raises UserError for another line,
    and for a file that is not there.
    """
    files = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path))
    for path in files:
        for row, line in enumerate(path.read_bytes().splitlines(), start=1):
            cells = line.decode(errors="replace").split()
            if len(cells) < 4 or cells[3] not in ("0", "1"):
                text = "is not a folder, a file, a number, a label 0 or 1"
                raise UserError(f"{path}: row {row} {text}, but {line[:60]!r}")
            image = folder / cells[0] / cells[1]
            try:
                status = image.stat()
            except OSError as error:
                raise UserError(f"{path}: row {row}: {image} does not exist") from error
            yield Drawing(image, status.st_size, status.st_mtime_ns, int(cells[3]))


def cached(drawings: list[Drawing]) -> np.ndarray:
    """Labels and pixels (S, 1 + 1024), from a file that is written where it is not there yet."""
    digest = hashlib.sha256()
    for drawing in drawings:
        digest.update(repr((str(drawing.path.resolve()), *drawing[1:])).encode())
    path = CACHE / f"pathfinder-{digest.hexdigest()[:16]}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            _decode(drawings, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r")


def _decode(drawings: list[Drawing], path: Path) -> None:
    shape = (len(drawings), 1 + _SIDE**2)
    table = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    console = Console(stderr=True)
    looks = {"description": "drawings", "console": console, "disable": not console.is_terminal}
    for row, drawing in enumerate(_watched(drawings, looks)):
        table[row, 0] = drawing.label
        table[row, 1:] = decode(drawing.path).ravel()
    table.flush()


def _watched(drawings: list[Drawing], looks: dict) -> Iterable[Drawing]:
    return track(drawings, **looks)


def decode(path: Path) -> np.ndarray:
    """The grey pixels (32, 32) of a PNG; raises UserError where it is none of that size."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
    except Exception as error:  # whatever a damaged file makes a decoder raise
        raise UserError(f"{path} cannot be read: {error}") from error
    if pixels.shape != (_SIDE, _SIDE):
        height, width = pixels.shape
        raise UserError(f"{path} is {width} x {height}, not {_SIDE} x {_SIDE}")
    return pixels
