"""Pathfinder32, drawn anew: two winding dashed snakes among shorter ones, and two discs.

The label says whether the discs are on the two ends of one snake. An image is a function of the
seed and of its number alone.

Source: https://github.com/drewlinsley/pathfinder with the parameters that
https://github.com/google-research/long-range-arena names; images are scaled to 0..255 as
scipy.misc.imsave did. `snakes.py` grows the snakes, `paddles.py` draws their parts.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.errors import UserError
from experiment_kit.run_files import write_folder_once
from numpy.typing import NDArray
from PIL import Image

from attention_sequence.generate.paddles import build_patches, draw_markers
from attention_sequence.generate.snakes import grow_snakes
from attention_sequence.generate.workers import map_in_order, show_progress

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
    """Draw image number `index` of a seed, with target snakes of `contour_length` paddles."""
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


def write_dataset(
    out: str | Path,
    count: int = 200_000,
    seed: int = 0,
    contour_length: int = 14,
    num_workers: int = 0,
) -> Path:
    """Write images and labels once, in the layout of Long Range Arena, and return their folder.

    `imgs/<k>/sample_<i>.png`, and in `metadata/<k>.npy`, a text file, a line each: its folder, its
    file, its number and its label, then the parameters.
    """
    shards = range(-(-count // SHARD))

    def write_shards(folder: Path) -> None:
        (folder / "metadata").mkdir()
        write = partial(write_images, folder, count, seed, contour_length)
        listings = map_in_order(write, shards, num_workers)
        for number, listing in enumerate(show_progress(listings, "pathfinder", len(shards))):
            (folder / "metadata" / f"{number}.npy").write_text(listing)

    # 6, the easiest length, is called baseline
    level = "baseline" if contour_length == 6 else f"contour_length_{contour_length}"
    return write_folder_once(Path(out) / "pathfinder32" / f"curv_{level}", write_shards)


def write_images(folder: Path, count: int, seed: int, contour_length: int, number: int) -> str:
    """Write a shard, the thousand images from `1000 number` on, and return its metadata."""
    images = folder / "imgs" / str(number)
    images.mkdir(parents=True)
    tail = TAIL.format(length=contour_length, short=contour_length // 3)
    lines = []
    for i, index in enumerate(range(SHARD * number, min(SHARD * (number + 1), count))):
        picture, name = draw_picture(seed, index, contour_length), f"sample_{i}.png"
        Image.fromarray(picture.image).save(images / name)
        lines.append(f"imgs/{number} {name} {i} {picture.label} {tail}\n")
    return "".join(lines)
