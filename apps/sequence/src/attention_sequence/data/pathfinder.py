"""Pathfinder: does a dashed path join two points of a drawing? It is read pixel by pixel.

https://arxiv.org/abs/1805.08315
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from experiment_kit.data.folders import list_visible_files, make_cache
from experiment_kit.data.image_files import load_image
from experiment_kit.errors import UserError
from rich.console import Console
from rich.progress import track

from attention_sequence.data.long_range import RELEASE, Examples, LongRangeData, TaskInfo

CACHE = Path("runs/data")
_SIDE = 32
_SPLIT_SEED = 0  # the same for every run: the test set must not change


class Drawing(NamedTuple):
    """A file, its size in bytes, when it was changed, and its label: whether a path joins."""

    path: Path
    size: int
    changed: int
    label: int


class Pathfinder(LongRangeData):
    """Drawings of 32 x 32 grey pixels as 1,024 tokens, row by row, and whether a path joins.

    `dataset_name` is the folder of a path length; 14 is the published one. A shuffle that is the
    same for every run takes 80 % of the drawings to train, 10 % to choose the checkpoint and 10 %
    to test. They are decoded once, into a file under `runs/data` that is written again if any
    drawing has changed. Empty files, of which the release has a few, are left out and counted.

    Source: https://github.com/google-research/long-range-arena
    """

    DATASETS: ClassVar[Mapping[str, TaskInfo]] = dict.fromkeys(
        ("curv_contour_length_14", "curv_contour_length_9", "curv_baseline"),
        TaskInfo(2, 256, _SIDE**2, _SIDE**2, 512),
    )
    FOLDERS = ("pathfinder32/{}", "{}")
    MARKERS = ("metadata",)
    HINT = f"download {RELEASE}, or draw it by `allpass data pathfinder`"
    IS_IMAGE = True

    @cached_property
    def drawings(self) -> np.ndarray:
        """Labels and pixels (S, 1 + 1024) on disk."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        listed = list(list_drawings(folder))
        if len({drawing.path for drawing in listed}) < len(listed):
            raise UserError(f"{folder}/metadata names drawings twice: remove copies of its files")
        drawings = [drawing for drawing in listed if drawing.size]
        if len(drawings) < len(listed):
            empty = f"{len(listed) - len(drawings)} of {len(listed)} drawings in {folder}"
            print(f"note: {empty} are empty", file=sys.stderr)
        if len(drawings) < 10:
            raise UserError(f"{folder} has {len(drawings)} drawings; a tenth to test takes ten")
        return load_drawings(drawings)

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the drawings of both splits, without empty ones."""
        folder = cls.find_data(dataset_name, data_dir)
        count = sum(drawing.size > 0 for drawing in list_drawings(folder))
        return {"train": count * 8 // 10, "test": count - count * 9 // 10}

    def read_examples(self, split: str) -> Examples:
        """Read the drawings of a split."""
        count = len(self.drawings)
        borders = {"train": (0, 8), "val": (8, 9), "test": (9, 10)}
        begin, end = (count * tenths // 10 for tenths in borders[split])
        chosen = np.sort(np.random.default_rng(_SPLIT_SEED).permutation(count)[begin:end])
        rows = self.drawings[chosen]  # 164 MB of 160,000 drawings
        return Examples(rows[:, 1:], rows[:, 0].astype(np.int64))


def list_drawings(folder: Path) -> Iterator[Drawing]:
    """Yield the drawings that the files in `metadata` name, in their order."""
    files = list_visible_files(folder / "metadata", ".npy")
    files.sort(key=lambda path: (len(path.name), path))
    for path in files:
        for row, line in enumerate(path.read_bytes().splitlines(), start=1):
            cells = line.decode(errors="replace").split()
            if len(cells) < 4 or cells[3] not in ("0", "1"):
                text = "is not a folder, a file, a number, a label 0 or 1"
                raise UserError(f"{path}: row {row} {text}, but {line[:30]!r}")
            image = folder / cells[0] / cells[1]
            status = image.stat()
            yield Drawing(image, status.st_size, status.st_mtime_ns, int(cells[3]))


def load_drawings(drawings: list[Drawing]) -> np.ndarray:
    """Load labels and pixels (S, 1 + 1024) from a file, which is written first if needed."""
    digest = hashlib.sha256()
    for drawing in drawings:
        digest.update(repr((str(drawing.path.resolve()), *drawing[1:])).encode())
    folder = CACHE / f"pathfinder-{digest.hexdigest()[:16]}"

    def write_table(unfinished: Path) -> None:
        shape, console = (len(drawings), 1 + _SIDE**2), Console(stderr=True)
        table = np.lib.format.open_memmap(unfinished / "drawings.npy", "w+", np.uint8, shape)
        shown = track(drawings, "drawings", console=console, disable=not console.is_terminal)
        for row, drawing in enumerate(shown):
            table[row, 0] = drawing.label
            table[row, 1:] = decode_drawing(drawing.path).ravel()
        table.flush()

    return np.load(make_cache(folder, write_table) / "drawings.npy", mmap_mode="r")


def decode_drawing(path: Path) -> np.ndarray:
    """Decode the grey pixels (32, 32) of an image; raises UserError for a bad file or size."""
    pixels = np.asarray(load_image(path).convert("L"))
    if pixels.shape != (_SIDE, _SIDE):
        height, width = pixels.shape
        raise UserError(f"{path} is {width} x {height}, not {_SIDE} x {_SIDE}")
    return pixels
