"""Pathfinder32, drawn anew: two winding dashed snakes among shorter ones, and two discs.

The label says whether the discs lie on the two ends of one snake. An image is a function of the
seed and of its number alone.

Source: https://github.com/drewlinsley/pathfinder with the parameters that
https://github.com/google-research/long-range-arena names; images are scaled to 0..255 as
scipy.misc.imsave did. `snakes.py` says how snakes grow, `paddles.py` what they look like.
"""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.errors import UserError
from numpy.typing import NDArray
from PIL import Image

from attention_sequence.generate import folder as folders
from attention_sequence.generate.paddles import markers, paints
from attention_sequence.generate.parallel import bar, ordered
from attention_sequence.generate.snakes import grow

SHARD = 1000  # images of a folder
TRIES = 1_000_000  # pairs of targets; 14 paddles need 400 on average
# continuity, contour and distractor length, paddle length, thickness, margin, contrasts
TAIL = "1.0 {length} {short} 2 0.5 1 1"


class Picture(NamedTuple):
    """One sample: an image (32, 32), its label, and where its markers are, each (y, x)."""

    image: NDArray[np.uint8]
    label: int
    origin: tuple[int, int]
    terminal: tuple[int, int]


def picture(seed: int, index: int, contour_length: int = 14) -> Picture:
    """Draw image number `index` of a seed, with target snakes of `contour_length` paddles.

    Raises a UserError where snakes of that length do not fit into an image.

    >>> image, label, origin, terminal = picture(seed=0, index=0, contour_length=6)
    >>> image.shape, int(image.min()), int(image.max()), label in (0, 1)
    ((32, 32), 0, 255, True)
    """
    if contour_length < 3:
        raise UserError(f"contour_length must be 3 or more, not {contour_length}")
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))
    label = int(rng.random() * 2)
    image, tails, heads, found = grow(rng, contour_length, TRIES, paints())
    if not found:
        raise UserError(f"no two snakes of {contour_length} paddles fit: make contour_length less")
    first = int(rng.random() * 2)
    origin, terminal = tails[first], heads[first if label else 1 - first]
    for y, x in (origin, terminal):
        image = np.maximum(image, markers()[y, x] / 255)
    return Picture(_bytes(image), label, _pair(origin), _pair(terminal))


def _pair(point: NDArray[np.int64]) -> tuple[int, int]:
    return int(point[0]), int(point[1])


def _bytes(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    low, high = image.min(), image.max()
    return ((image - low) * (255 / (high - low)) + 0.5).astype(np.uint8)


def place(out: str | Path, contour_length: int = 14) -> Path:
    """Say where images of a length lie: 6, the easiest, is called baseline.

    >>> place("data", 6)
    PosixPath('data/pathfinder32/curv_baseline')
    """
    level = "baseline" if contour_length == 6 else f"contour_length_{contour_length}"
    return Path(out) / "pathfinder32" / f"curv_{level}"


def write(
    out: str | Path,
    count: int = 200_000,
    seed: int = 0,
    workers: int = 1,
    contour_length: int = 14,
) -> bool:
    """Write images and labels as Long Range Arena has them; False where they are there already.

    `imgs/<k>/sample_<i>.png`, and in `metadata/<k>.npy`, a text file, a line each: its folder, its
    file, its number and its label, then the parameters. Whole shards of an interrupted call are
    kept. Raises a UserError where other images are there.
    """
    options = {"count": count, "seed": seed, "contour_length": contour_length}
    shards = range(-(-count // SHARD))

    def write_shards(folder: Path) -> None:
        todo = [k for k in shards if not _metadata(folder, k).exists()]
        work = partial(write_shard, folder, count, seed, contour_length)
        with bar(f"pathfinder, {contour_length} paddles", len(shards)) as advance:
            advance(len(shards) - len(todo))
            for _ in ordered(work, todo, workers):
                advance(1)

    parts = ("imgs", "metadata")
    return folders.make(place(out, contour_length), options, parts, write_shards)


def write_shard(folder: Path, count: int, seed: int, contour_length: int, number: int) -> None:
    """Write a thousand images, from the one of number `1000 number` on, and at last their list."""
    images = folder / "imgs" / str(number)
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    first = SHARD * number
    tail = TAIL.format(length=contour_length, short=contour_length // 3)
    lines = [
        f"imgs/{number} {name} {i} {label} {tail}\n"
        for i, (name, label) in enumerate(
            _write_images(images, seed, contour_length, range(first, min(first + SHARD, count)))
        )
    ]
    metadata = _metadata(folder, number)
    metadata.parent.mkdir(exist_ok=True)
    unfinished = metadata.with_suffix(".part")
    unfinished.write_text("".join(lines))
    os.replace(unfinished, metadata)


def _write_images(
    folder: Path, seed: int, contour_length: int, indices: range
) -> Iterator[tuple[str, int]]:
    for i, index in enumerate(indices):
        drawn = picture(seed, index, contour_length)
        name = f"sample_{i}.png"
        Image.fromarray(drawn.image).save(folder / name)
        yield name, drawn.label


def _metadata(folder: Path, number: int) -> Path:
    return folder / "metadata" / f"{number}.npy"
