"""The patches that Pathfinder is painted with: paddles, masks around them, and markers, as bytes.

A paddle is a line of one pixel, drawn at twice the size and brought down by Lanczos resampling. Its
end is rounded to a pixel before it is drawn, so there are as few paddles as there are ends.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy import ndimage

SIZE = 32  # pixels of an image's side
SCALE = 2  # how much larger everything is drawn
LENGTH = 2  # a paddle's
REACH = 4  # pixels from the start of a paddle to the side of its patch
ENDS = 2 * LENGTH * SCALE + 1  # places of an end along one axis, at twice the size
RADIUS = 1.5  # a marker's
TARGETS, DISTRACTORS = 0.75 * 2.0, 2.0  # contrasts: the original dims its targets alone


class PaddlePatches(NamedTuple):
    """Patches by the end of a paddle, (9, 9, 9, 9): lines in two contrasts, and their masks."""

    targets: NDArray[np.float64]
    distractors: NDArray[np.float64]
    masks: NDArray[np.float64]


@cache
def build_patches() -> PaddlePatches:
    """Build the patches, rounded to single precision as in the original."""
    lines, masks = (patches / 255 for patches in draw_paddles())
    patches = (TARGETS * lines, DISTRACTORS * lines, masks)
    return PaddlePatches(*(part.astype(np.float32).astype(np.float64) for part in patches))


@cache
def draw_paddles() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draw lines and masks by their end: arrays (ends_y, ends_x, 9, 9), starting in the center.

    >>> lines, masks = draw_paddles()
    >>> lines.shape
    (9, 9, 9, 9)
    >>> lines[4, 8, 4]  # to the right, along the middle row
    array([  0,   0,   2,   0, 102, 135, 116,   0,   0], dtype=uint8)
    """
    shape = (ENDS, ENDS, 2 * REACH + 1, 2 * REACH + 1)
    lines, masks = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
    near = draw_disc(5, (2, 2), 2.0)  # the margin of one pixel
    for y, x in np.ndindex(ENDS, ENDS):
        line = _draw_line(y, x)
        lines[y, x] = _resize(line, 2 * REACH + 1)
        masks[y, x] = _resize(ndimage.maximum_filter(line, footprint=near), 2 * REACH + 1)
    return lines, masks


@cache
def draw_markers() -> NDArray[np.uint8]:
    """Draw the marker at every pixel: (32, 32) images of (32, 32) pixels."""
    marks = np.empty((SIZE,) * 4, np.uint8)
    for y, x in np.ndindex(SIZE, SIZE):
        drawn = draw_disc(SIZE * SCALE, (SCALE * y, SCALE * x), SCALE * RADIUS)
        marks[y, x] = _resize(np.uint8(255) * drawn, SIZE)
    return marks


def draw_disc(size: int, center: tuple[int, int], radius: float) -> NDArray[np.bool_]:
    """Mark the pixels of a (size, size) image at most `radius` away from the center."""
    y, x = np.ogrid[:size, :size]
    return (y - center[0]) ** 2 + (x - center[1]) ** 2 <= radius**2


def _draw_line(end_y: int, end_x: int) -> NDArray[np.uint8]:
    center = REACH * SCALE
    canvas = Image.new("L", (2 * center + 1, 2 * center + 1))
    end = (center - LENGTH * SCALE + end_x, center - LENGTH * SCALE + end_y)
    ImageDraw.Draw(canvas).line([(center, center), end], fill=255, width=1)
    return np.asarray(canvas)


def _resize(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS))
