"""Pathfinder32, drawn anew: two winding dashed snakes among shorter ones, and two discs.

The label says whether the discs are on the two ends of one snake. An image is a function of the
seed and of its number alone.

Source: https://github.com/drewlinsley/pathfinder with the parameters that
https://github.com/google-research/long-range-arena names; images are scaled to 0..255 as
scipy.misc.imsave did. `snakes.py` grows the snakes, `paddles.py` draws their parts.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.errors import UserError
from numpy.typing import NDArray
from PIL import Image

from attention_sequence.generate.folder import generate_folder, map_in_order, progress_bar
from attention_sequence.generate.paddles import build_patches, draw_markers
from attention_sequence.generate.snakes import grow_snakes

SHARD = 1000  # images of a folder
TRIES = 1_000_000  # pairs of targets; 14 paddles need 400 on average
# continuity, contour and distractor length, paddle length, thickness, margin, contrasts
TAIL = "1.0 {length} {short} 2 0.5 1 1"


class Picture(NamedTuple):
    """One sample: an image (32, 32), its label, and the positions (y, x) of its markers."""

    image: NDArray[np.uint8]
    label: int
    origin: tuple[int, int]
    terminal: tuple[int, int]


def draw_picture(seed: int, index: int, contour_length: int = 14) -> Picture:
    """Draw image number `index` of a seed, with target snakes of `contour_length` paddles.

    Raises UserError if snakes of that length do not fit into an image.

    >>> image, label, origin, terminal = draw_picture(seed=0, index=0, contour_length=6)
    >>> image.shape, int(image.min()), int(image.max()), label in (0, 1)
    ((32, 32), 0, 255, True)
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))
    label = int(rng.random() * 2)
    image, tails, heads, found = grow_snakes(rng, contour_length, TRIES, build_patches())
    if not found:
        raise UserError(f"no two snakes of {contour_length} paddles fit: make contour_length less")
    first = int(rng.random() * 2)
    origin, terminal = tails[first], heads[first if label else 1 - first]
    for y, x in (origin, terminal):
        image = np.maximum(image, draw_markers()[y, x] / 255)
    low, high = image.min(), image.max()
    pixels = ((image - low) * (255 / (high - low)) + 0.5).astype(np.uint8)
    (y0, x0), (y1, x1) = origin.tolist(), terminal.tolist()
    return Picture(pixels, label, (y0, x0), (y1, x1))


def dataset_folder(out: str | Path, contour_length: int = 14) -> Path:
    """Return the folder of the images of a length; 6, the easiest, is called baseline."""
    level = "baseline" if contour_length == 6 else f"contour_length_{contour_length}"
    return Path(out) / "pathfinder32" / f"curv_{level}"


def write_dataset(
    out: str | Path,
    count: int = 200_000,
    seed: int = 0,
    num_workers: int = 1,
    contour_length: int = 14,
) -> bool:
    """Write images and labels in the layout of Long Range Arena; return False if they exist.

    `imgs/<k>/sample_<i>.png`, and in `metadata/<k>.npy`, a text file, a line each: its folder, its
    file, its number and its label, then the parameters. Complete shards of an interrupted call are
    kept. Raises UserError if there are images of other options.
    """
    from experiment_kit.run import write_atomically  # torch: not for workers

    options = {"count": count, "seed": seed, "contour_length": contour_length}
    shards = range(-(-count // SHARD))

    def write_shards(folder: Path) -> None:
        missing = [k for k in shards if not _metadata_path(folder, k).exists()]
        write = partial(write_images, folder, count, seed, contour_length)
        title = f"pathfinder, {contour_length} paddles"
        with progress_bar(title, len(shards)) as advance:
            advance(len(shards) - len(missing))
            listings = map_in_order(write, missing, num_workers)
            for number, listing in zip(missing, listings, strict=True):
                write_atomically(_metadata_path(folder, number), listing)
                advance(1)

    folder = dataset_folder(out, contour_length)
    return generate_folder(folder, options, ("imgs", "metadata"), write_shards)


def write_images(folder: Path, count: int, seed: int, contour_length: int, number: int) -> str:
    """Write a shard, the thousand images from `1000 number` on, and return its metadata."""
    images = folder / "imgs" / str(number)
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    tail = TAIL.format(length=contour_length, short=contour_length // 3)
    lines = []
    for i, index in enumerate(range(SHARD * number, min(SHARD * (number + 1), count))):
        picture, name = draw_picture(seed, index, contour_length), f"sample_{i}.png"
        Image.fromarray(picture.image).save(images / name)
        lines.append(f"imgs/{number} {name} {i} {picture.label} {tail}\n")
    return "".join(lines)


def _metadata_path(folder: Path, number: int) -> Path:
    return folder / "metadata" / f"{number}.npy"
