"""How the snakes of Pathfinder grow: seeds, steps and retries, compiled.

Angles are in radians, y before x and downwards. `occupied` is the mask M in [0, 1], which a paddle
enters one step after it was drawn. All random numbers come from one generator, in this order.
One file, since numba's cache does not see what changes in another.
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
TOO_FULL = 0.01  # share of free pixels below which distractors are given up
ANGLES = np.arange(0, 360, 360 / (2 * STEP * np.pi)) * np.pi / 180  # one pixel of arc apart


class Tip(NamedTuple):
    """Where a snake ends: its last pivot and angle, and its last paddle's start and end."""

    pivot_y: int
    pivot_x: int
    angle: float
    y: int
    x: int
    end_y: int
    end_x: int


@njit(cache=True)
def grow(rng, length, tries, paints):
    """Grow two target snakes of `length` paddles and their distractors.

    Gives the image (32, 32), the two tails and heads, each (2, 2) of y and x, and whether the
    targets came about; if not, nothing else holds.
    """
    tails, heads = np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64)
    for _ in range(tries):
        image = np.zeros((SIZE, SIZE))
        occupied = _bordered(image, MARGIN)
        if _targets(rng, length, image, occupied, paints, tails, heads):
            for _ in range(20 // (length // 3)):
                image, occupied = _distractor(rng, length // 3, image, occupied, paints)
            return image, tails, heads, True
    return image, tails, heads, False


@njit(cache=True)
def _targets(rng, length, image, occupied, paints, tails, heads):
    found, first = _seed(rng, occupied, 2 * SEED_DISTANCE, paints)
    if not found:
        return False
    found, second = _second_seed(rng, first)
    if not found:
        return False
    tails[0, 0], tails[0, 1], tails[1, 0], tails[1, 1] = first.y, first.x, second.y, second.x
    _stamp(image, paints.targets, first)
    _stamp(image, paints.targets, second)
    for _ in range(length - 1):
        found, first = _extend(rng, first, image, occupied, paints.targets, paints.masks)
        if not found:
            return False
        found, second = _extend(rng, second, image, occupied, paints.targets, paints.masks)
        if not found:
            return False
    _stamp(occupied, paints.masks, second)  # the first snake's last paddle never enters
    heads[0, 0], heads[0, 1], heads[1, 0], heads[1, 1] = first.y, first.x, second.y, second.x
    return True


@njit(cache=True)
def _distractor(rng, length, image, occupied, paints):
    """Add a short snake, if one of five tries succeeds."""
    for _ in range(SNAKE_TRIES):
        if _is_full(occupied):
            break
        found, tip = _seed(rng, occupied, 1, paints)
        if not found:
            continue
        new, taken = image.copy(), occupied.copy()
        _stamp(new, paints.distractors, tip)
        for _ in range(length - 1):
            found, tip = _extend(rng, tip, new, taken, paints.distractors, paints.masks)
            if not found:
                break
        if found:
            _stamp(taken, paints.masks, tip)
            return new, taken
    return image, occupied


@njit(cache=True)
def _is_full(occupied):
    free = 0
    for y in range(SIZE):
        for x in range(SIZE):
            free += occupied[y, x] <= TAKEN
    return free < TOO_FULL * SIZE * SIZE


@njit(cache=True)
def _seed(rng, occupied, border, paints):
    """Start a snake at a free pixel, `border` pixels from the sides or more."""
    tip = Tip(0, 0, 0.0, 0, 0, 0, 0)
    for _ in range(PADDLE_TRIES):
        angle = (_below(rng, 360) - 180) * np.pi / 180
        free = _free(occupied, border, paints.masks, angle)
        if len(free) == 0:
            return False, tip
        tail = free[_below(rng, len(free))]
        found, tip = _start(tail[0], tail[1], angle)
        if found:
            return True, tip
    return False, tip


@njit(cache=True)
def _second_seed(rng, first):
    """Start the second target 7 pixels from the first: only the image's sides are minded."""
    tip = first
    for _ in range(PADDLE_TRIES):
        angle = (_below(rng, 360) - 180) * np.pi / 180
        around = _below(rng, 360) * np.pi / 180
        y = int(np.rint(first.y + SEED_DISTANCE * np.sin(around)))
        x = int(np.rint(first.x + SEED_DISTANCE * np.cos(around)))
        found, tip = _start(y, x, angle)
        if found:
            return True, tip
    return False, tip


@njit(cache=True)
def _start(y, x, angle):
    """Put the first paddle's tail at a pixel: its head and its pivot must lie in the image."""
    back = angle + np.pi if angle < 0 else angle - np.pi
    head_y, head_x = _moved(y, x, angle, LENGTH)
    pivot_y, pivot_x = _moved(head_y, head_x, back, STEP)
    end_y, end_x = _end(angle)
    tip = Tip(pivot_y, pivot_x, angle, y, x, end_y, end_x)
    return _inside(head_y, head_x) and _inside(pivot_y, pivot_x), tip


@njit(cache=True)
def _free(occupied, border, masks, angle):
    """Pixels whose own paddle, at this angle, would touch neither the border nor what is taken.

    The paddle is laid one pixel down and to the right of its pixel, and counts where its mask is
    full. Nothing is free where it would leave the image from some pixel altogether, as it does
    unless it points up and to the left: so do the original's seeds, and so distractors are few.
    """
    end_y, end_x = _end(angle)
    taken = _bordered(occupied, border)
    touched = np.full((SIZE, SIZE), -1.0)
    for j in range(2 * STEP + 1):
        for i in range(2 * STEP + 1):
            if masks[end_y, end_x, j, i] == 1.0:
                _touch(touched, taken, j - STEP, i - STEP)
    free = np.empty((SIZE * SIZE, 2), np.int64)
    count = 0
    for y in range(SIZE):
        for x in range(SIZE):
            if touched[y, x] < 0:
                return free[:0]
            if touched[y, x] <= TAKEN:
                free[count, 0], free[count, 1] = y, x
                count += 1
    return free[:count]


@njit(cache=True)
def _touch(touched, taken, down, right):
    for y in range(max(0, -down), min(SIZE, SIZE - down)):
        for x in range(max(0, -right), min(SIZE, SIZE - right)):
            touched[y, x] = max(touched[y, x], taken[y + down, x + right])


@njit(cache=True)
def _bordered(occupied, width):
    taken = occupied.copy()
    for y in range(SIZE):
        for x in range(SIZE):
            if min(y, x) < width or max(y, x) >= SIZE - width:
                taken[y, x] = 1.0
    return taken


@njit(cache=True)
def _extend(rng, tip, image, occupied, lines, masks):
    """Add a paddle, drawn from its head backwards; what went before it becomes occupied."""
    pivot_y, pivot_x = _moved(tip.pivot_y, tip.pivot_x, tip.angle, LENGTH + 2 * MARGIN)
    heads, angles, total = _candidates(pivot_y, pivot_x, tip.angle, occupied)
    if len(heads) == 0 or total[-1] < DEAD_END:
        return False, tip
    for _ in range(PADDLE_TRIES):
        i = _first_above(total, rng.random())
        back = angles[i] + np.pi if angles[i] < 0 else angles[i] - np.pi
        end_y, end_x = _end(back)
        y, x = heads[i] // SIZE, heads[i] % SIZE
        new = Tip(pivot_y, pivot_x, angles[i], y, x, end_y, end_x)
        if _overlap(occupied, masks, new) < CROSSING:
            _stamp(image, lines, new)
            _stamp(occupied, masks, tip)
            return True, new
    return False, tip


@njit(cache=True)
def _first_above(total, share):
    for i in range(len(total)):
        if total[i] / total[-1] > share:
            return i
    return 0


@njit(cache=True)
def _candidates(pivot_y, pivot_x, last, occupied):
    """Heads on the circle round a pivot, as 32 y + x; their angles; their weights, summed so far.

    weight = max(cos delta, 0)^2 (1 - M dilated by one pixel), delta the change of the angle.
    """
    heads = _circle(pivot_y, pivot_x)
    angles, total = np.empty(len(heads)), np.empty(len(heads))
    reached = 0.0
    for i in range(len(heads)):
        y, x = heads[i] // SIZE, heads[i] % SIZE
        angles[i] = np.arctan2(float(y - pivot_y), float(x - pivot_x))
        delta = abs(angles[i] - last)
        delta = min(delta, 2 * np.pi - delta, 0.5 * np.pi)
        reached += (1 - _nearby(occupied, y, x)) * max(np.cos(delta), 0.0) ** 2
        total[i] = reached
    return heads, angles, total


@njit(cache=True)
def _circle(pivot_y, pivot_x):
    """Pixels 3 away from a pivot and in the image, each once and in order."""
    marked = np.zeros((2 * STEP + 1, 2 * STEP + 1), np.bool_)
    for angle in ANGLES:
        y, x = pivot_y + STEP * np.sin(angle), pivot_x + STEP * np.cos(angle)
        if _inside(y, x):
            marked[int(y) - pivot_y + STEP, int(x) - pivot_x + STEP] = True
    pixels = np.empty(ANGLES.size, np.int64)
    count = 0
    for y in range(2 * STEP + 1):
        for x in range(2 * STEP + 1):
            if marked[y, x]:
                pixels[count] = (y + pivot_y - STEP) * SIZE + x + pivot_x - STEP
                count += 1
    return pixels[:count]


@njit(cache=True)
def _nearby(occupied, y, x):
    most = occupied[y, x]
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        if _inside(y + down, x + right):
            most = max(most, occupied[y + down, x + right])
    return most


@njit(cache=True)
def _overlap(occupied, masks, tip):
    """Largest sum of M and a paddle's mask, where there is any of it."""
    most = 0.0
    for j in range(2 * REACH + 1):
        for i in range(2 * REACH + 1):
            y, x = tip.y + j - REACH, tip.x + i - REACH
            if _inside(y, x):
                most = max(most, occupied[y, x] + masks[tip.end_y, tip.end_x, j, i])
    return most


@njit(cache=True)
def _stamp(image, patches, tip):
    for j in range(2 * REACH + 1):
        for i in range(2 * REACH + 1):
            y, x = tip.y + j - REACH, tip.x + i - REACH
            if _inside(y, x):
                image[y, x] = max(image[y, x], patches[tip.end_y, tip.end_x, j, i])


@njit(cache=True)
def _end(angle):
    centre = REACH * SCALE
    y, x = _moved(centre, centre, angle, LENGTH * SCALE)
    return y - centre + LENGTH * SCALE, x - centre + LENGTH * SCALE


@njit(cache=True)
def _moved(y, x, angle, distance):
    return int(np.ceil(y + distance * np.sin(angle))), int(np.ceil(x + distance * np.cos(angle)))


@njit(cache=True)
def _inside(y, x):
    return 0 <= y < SIZE and 0 <= x < SIZE


@njit(cache=True)
def _below(rng, limit):
    return int(rng.random() * limit)
