"""The growth of Pathfinder's snakes, compiled: seeds, steps and retries.

"Snake" (a path), "paddle" (one dash of it) and "distractor" (a short snake that joins nothing) are
the words of https://github.com/drewlinsley/pathfinder. A snake grows paddle by paddle; * is a
pivot, in the middle of a gap, from which the next head is STEP pixels away:

    tail ---- head  *  ---- head  *  ----       angles are in radians,
          2        1 1   2                      y comes before x and points down

`occupied` is a mask in [0, 1], which a paddle enters one step after it was drawn. All random
numbers come from one generator, in this order. One file, since numba's cache does not see what
changes in another.
"""

from typing import NamedTuple

import numpy as np
from numba import njit  # type: ignore[import-untyped]

from attention_sequence.generate.paddles import LENGTH, REACH, SCALE, SIZE

MARGIN = 1
STEP = LENGTH + MARGIN  # from a pivot, in the middle of a gap, to the next head
SEED_DISTANCE = 7
PADDLE_TRIES = 3
SNAKE_TRIES = 5
TAKEN = 0.3  # occupation above which nothing starts at a pixel
CROSSING = 1.8  # sum of occupations from which two paddles cross
DEAD_END = 1e-4  # sum of the candidates' weights
TOO_FULL = 0.01  # fraction of free pixels below which no distractor is tried
ANGLES = np.arange(0, 360, 360 / (2 * STEP * np.pi)) * np.pi / 180  # one pixel of arc apart


class Tip(NamedTuple):
    """The end of a snake: its last pivot and angle, and its last paddle's start and end."""

    pivot_y: int
    pivot_x: int
    angle: float
    y: int
    x: int
    end_y: int
    end_x: int


@njit(cache=True)
def grow_snakes(rng, length, tries, patches):
    """Grow two target snakes of `length` paddles and their distractors.

    Returns the image (32, 32), the two tails and heads, each (2, 2) of y and x, and True if the
    targets were grown; if False, the rest has no meaning.
    """
    tails, heads = np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64)
    for _ in range(tries):
        image = np.zeros((SIZE, SIZE))
        occupied = _add_border(image, np.int64(MARGIN))  # compiled for one type
        if _grow_targets(rng, length, image, occupied, patches, tails, heads):
            for _ in range(20 // (length // 3)):
                image, occupied = _grow_distractor(rng, length // 3, image, occupied, patches)
            return image, tails, heads, True
    return image, tails, heads, False


@njit(cache=True)
def _grow_targets(rng, length, image, occupied, patches, tails, heads):
    found, first = _start_snake(rng, occupied, 2 * SEED_DISTANCE, patches)
    if not found:
        return False
    found, second = _start_second_target(rng, first)
    if not found:
        return False
    tails[0, 0], tails[0, 1], tails[1, 0], tails[1, 1] = first.y, first.x, second.y, second.x
    _stamp_patch(image, patches.targets, first)
    _stamp_patch(image, patches.targets, second)
    for _ in range(length - 1):
        found, first = _extend_snake(rng, first, image, occupied, patches.targets, patches.masks)
        if not found:
            return False
        found, second = _extend_snake(rng, second, image, occupied, patches.targets, patches.masks)
        if not found:
            return False
    _stamp_patch(occupied, patches.masks, second)  # the first snake's last paddle never enters
    heads[0, 0], heads[0, 1], heads[1, 0], heads[1, 1] = first.y, first.x, second.y, second.x
    return True


@njit(cache=True)
def _grow_distractor(rng, length, image, occupied, patches):
    """Add a short snake, if one of five tries succeeds."""
    for _ in range(SNAKE_TRIES):
        if (occupied <= TAKEN).sum() < TOO_FULL * SIZE * SIZE:
            break
        found, tip = _start_snake(rng, occupied, np.int64(1), patches)
        if not found:
            continue
        new, taken = image.copy(), occupied.copy()
        _stamp_patch(new, patches.distractors, tip)
        for _ in range(length - 1):
            found, tip = _extend_snake(rng, tip, new, taken, patches.distractors, patches.masks)
            if not found:
                break
        if found:
            _stamp_patch(taken, patches.masks, tip)
            return new, taken
    return image, occupied


@njit(cache=True)
def _start_snake(rng, occupied, border, patches):
    """Start a snake at a free pixel, `border` pixels from the sides or more."""
    tip = Tip(0, 0, 0.0, 0, 0, 0, 0)
    for _ in range(PADDLE_TRIES):
        angle = (_draw_below(rng, 360) - 180) * np.pi / 180
        free = _find_free_pixels(occupied, border, patches.masks, angle)
        if len(free) == 0:
            return False, tip
        tail = free[_draw_below(rng, len(free))]
        found, tip = _place_first_paddle(tail[0], tail[1], angle)
        if found:
            return True, tip
    return False, tip


@njit(cache=True)
def _start_second_target(rng, first):
    """Start the second target 7 pixels from the first; it may touch it, but not leave the image."""
    tip = first
    for _ in range(PADDLE_TRIES):
        angle = (_draw_below(rng, 360) - 180) * np.pi / 180
        around = _draw_below(rng, 360) * np.pi / 180
        y = int(np.rint(first.y + SEED_DISTANCE * np.sin(around)))
        x = int(np.rint(first.x + SEED_DISTANCE * np.cos(around)))
        found, tip = _place_first_paddle(y, x, angle)
        if found:
            return True, tip
    return False, tip


@njit(cache=True)
def _place_first_paddle(y, x, angle):
    """Put the first paddle's tail at a pixel: its head and its pivot must lie in the image."""
    back = angle + np.pi if angle < 0 else angle - np.pi
    head_y, head_x = _move_point(y, x, angle, LENGTH)
    pivot_y, pivot_x = _move_point(head_y, head_x, back, STEP)
    end_y, end_x = _find_end_index(angle)
    tip = Tip(pivot_y, pivot_x, angle, y, x, end_y, end_x)
    return _is_inside(head_y, head_x) and _is_inside(pivot_y, pivot_x), tip


@njit(cache=True)
def _find_free_pixels(occupied, border, masks, angle):
    """Find pixels whose paddle, at this angle, would touch neither border nor occupied pixels.

    The paddle is placed one pixel down and to the right of its pixel, and touches where its mask
    is 1. As in the original, no pixel is free if from some pixel the paddle would be wholly outside
    of the image, as it is unless it points up and to the left; therefore distractors are few.
    """
    end_y, end_x = _find_end_index(angle)
    taken = _add_border(occupied, border)
    touched = np.full((SIZE, SIZE), -1.0)
    for j in range(2 * STEP + 1):
        for i in range(2 * STEP + 1):
            if masks[end_y, end_x, j, i] == 1.0:
                _mark_touched(touched, taken, j - STEP, i - STEP)
    if touched.min() < 0:
        return np.empty((0, 2), np.int64)
    return np.argwhere(touched <= TAKEN)


@njit(cache=True)
def _mark_touched(touched, taken, down, right):
    for y in range(max(0, -down), min(SIZE, SIZE - down)):
        for x in range(max(0, -right), min(SIZE, SIZE - right)):
            touched[y, x] = max(touched[y, x], taken[y + down, x + right])


@njit(cache=True)
def _add_border(occupied, width):
    taken = np.ones((SIZE, SIZE))
    taken[width:-width, width:-width] = occupied[width:-width, width:-width]
    return taken


@njit(cache=True)
def _extend_snake(rng, tip, image, occupied, lines, masks):
    """Add a paddle, drawn from its head backwards; the paddle before it becomes occupied."""
    pivot_y, pivot_x = _move_point(tip.pivot_y, tip.pivot_x, tip.angle, LENGTH + 2 * MARGIN)
    heads, angles, total = _find_candidates(pivot_y, pivot_x, tip.angle, occupied)
    if len(heads) == 0 or total[-1] < DEAD_END:
        return False, tip
    for _ in range(PADDLE_TRIES):
        i = np.argmax(total / total[-1] > rng.random())  # the first above
        back = angles[i] + np.pi if angles[i] < 0 else angles[i] - np.pi
        end_y, end_x = _find_end_index(back)
        y, x = heads[i] // SIZE, heads[i] % SIZE
        new = Tip(pivot_y, pivot_x, angles[i], y, x, end_y, end_x)
        if _find_largest_overlap(occupied, masks, new) < CROSSING:
            _stamp_patch(image, lines, new)
            _stamp_patch(occupied, masks, tip)
            return True, new
    return False, tip


@njit(cache=True)
def _find_candidates(pivot_y, pivot_x, last, occupied):
    """Find the heads around a pivot, as 32 y + x, their angles, and their cumulative weights.

    weight = max(cos delta, 0)^2 (1 - occupied, dilated by a pixel), delta the change of angle.
    """
    heads = _list_circle_pixels(pivot_y, pivot_x)
    angles, total = np.empty(len(heads)), np.empty(len(heads))
    reached = 0.0
    for i in range(len(heads)):
        y, x = heads[i] // SIZE, heads[i] % SIZE
        angles[i] = np.arctan2(float(y - pivot_y), float(x - pivot_x))
        delta = abs(angles[i] - last)
        delta = min(delta, 2 * np.pi - delta, 0.5 * np.pi)
        reached += (1 - _find_nearby_maximum(occupied, y, x)) * max(np.cos(delta), 0.0) ** 2
        total[i] = reached
    return heads, angles, total


@njit(cache=True)
def _list_circle_pixels(pivot_y, pivot_x):
    """List the pixels of the image at a distance of 3 from a pivot, each once and in order."""
    marked = np.zeros((2 * STEP + 1, 2 * STEP + 1), np.bool_)
    for angle in ANGLES:
        y, x = pivot_y + STEP * np.sin(angle), pivot_x + STEP * np.cos(angle)
        if _is_inside(y, x):
            marked[int(y) - pivot_y + STEP, int(x) - pivot_x + STEP] = True
    y, x = np.nonzero(marked)
    return (y + pivot_y - STEP) * SIZE + x + pivot_x - STEP


@njit(cache=True)
def _find_nearby_maximum(occupied, y, x):
    most = occupied[y, x]
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        if _is_inside(y + down, x + right):
            most = max(most, occupied[y + down, x + right])
    return most


@njit(cache=True)
def _find_largest_overlap(occupied, masks, tip):
    """Find the largest sum of the occupation and a paddle's mask."""
    most = 0.0
    for j in range(2 * REACH + 1):
        for i in range(2 * REACH + 1):
            y, x = tip.y + j - REACH, tip.x + i - REACH
            if _is_inside(y, x):
                most = max(most, occupied[y, x] + masks[tip.end_y, tip.end_x, j, i])
    return most


@njit(cache=True)
def _stamp_patch(image, paddles, tip):
    for j in range(2 * REACH + 1):
        for i in range(2 * REACH + 1):
            y, x = tip.y + j - REACH, tip.x + i - REACH
            if _is_inside(y, x):
                image[y, x] = max(image[y, x], paddles[tip.end_y, tip.end_x, j, i])


@njit(cache=True)
def _find_end_index(angle):
    center = REACH * SCALE
    y, x = _move_point(center, center, angle, LENGTH * SCALE)
    return y - center + LENGTH * SCALE, x - center + LENGTH * SCALE


@njit(cache=True)
def _move_point(y, x, angle, distance):
    return int(np.ceil(y + distance * np.sin(angle))), int(np.ceil(x + distance * np.cos(angle)))


@njit(cache=True)
def _is_inside(y, x):
    return 0 <= y < SIZE and 0 <= x < SIZE


@njit(cache=True)
def _draw_below(rng, limit):
    return int(rng.random() * limit)
