"""Pathfinder drawn as described: whole images, one operation at a time."""

from functools import cache

import numpy as np
from attention_sequence.generate.paddles import draw_disc
from PIL import Image, ImageDraw
from scipy.ndimage import maximum_filter


def resized(image: np.ndarray, side: int) -> np.ndarray:
    small = Image.fromarray(np.uint8(image)).resize((side, side), Image.Resampling.LANCZOS)
    return np.float64(small)


def moved(point, angle, distance) -> tuple[int, int]:
    y, x = point
    down, right = distance * np.sin(angle), distance * np.cos(angle)
    return int(np.ceil(y + down)), int(np.ceil(x + right))


@cache
def paddle(angle: float) -> tuple[np.ndarray, np.ndarray]:
    canvas = Image.new("L", (17, 17))
    ImageDraw.Draw(canvas).line([(8, 8), moved((8, 8), angle, 4)[::-1]], fill=255, width=1)
    thick = maximum_filter(np.array(canvas), footprint=draw_disc(5, (2, 2), 2))
    return tuple(np.float32(resized(np.array(im), 9) / 255) for im in (canvas, thick))


def pasted(patch, point, size=32) -> np.ndarray:
    wide = np.zeros((size + 24, size + 24))
    wide[point[0] + 8 : point[0] + 17, point[1] + 8 : point[1] + 17] = patch
    return wide[12 : size + 12, 12 : size + 12]


class ReferencePicture:
    """The generator of whole images, one operation at a time."""

    def __init__(self, seed, index, length) -> None:
        self.rng, self.length = np.random.default_rng([seed, index]), length
        self.label = self.below(2)
        while (targets := self.targets()) is None:
            pass
        (one, two), self.M, self.tails, self.heads = targets
        self.image = np.maximum(one, two)
        for _ in range(20 // (length // 3)):
            any(self.distractor() for _ in range(5))  # until one finds a place
        first = self.below(2)
        self.ends = self.tails[first], self.heads[first if self.label else 1 - first]
        for end in self.ends:
            drawn = resized(255 * draw_disc(64, (2 * end[0], 2 * end[1]), 3.0), 32)
            self.image = np.maximum(self.image, drawn / 255)

    def below(self, limit) -> int:
        return int(self.rng.random() * limit)

    def bytes(self) -> np.ndarray:
        scaled = (self.image - self.image.min()) / (self.image.max() - self.image.min())
        return np.floor(255 * scaled + 0.5)

    def drawn(self, angle, contrast, point) -> tuple[np.ndarray, np.ndarray]:
        line, mask = paddle(angle)
        line = np.float32(np.rint(np.float64(line) * 255) / 255 * contrast)
        return pasted(line, point), pasted(mask, point)

    def seed(self, M, border, near=None):
        for _ in range(3):
            angle = (self.below(360) - 180) * np.pi / 180
            if near is None:
                free = self.free(M, border, angle)
                if len(free) == 0:
                    return None
                tail = tuple(free[self.below(len(free))])
            else:
                around = self.below(360) * np.pi / 180
                down, right = 7 * np.sin(around), 7 * np.cos(around)
                tail = int(np.rint(near[0] + down)), int(np.rint(near[1] + right))
            head = moved(tail, angle, 2)
            pivot = moved(head, angle + np.pi if angle < 0 else angle - np.pi, 3)
            if all(0 <= c < 32 for c in (*head, *pivot)):
                return tail, pivot, angle
        return None

    def free(self, M, border, angle) -> np.ndarray:
        lined = M.copy()
        lined[:border] = lined[-border:] = lined[:, :border] = lined[:, -border:] = 1
        struct = pasted(paddle(angle)[1], (4, 4), 7) == 1
        dilated = np.full((32, 32), -np.inf)  # what cv2.dilate has where no neighbour is
        for y, x in np.ndindex(32, 32):
            for j, i in np.argwhere(struct) - 3:
                if 0 <= y + j < 32 and 0 <= x + i < 32:
                    dilated[y, x] = max(dilated[y, x], lined[y + j, x + i])
        return np.argwhere(dilated <= 0.3) if dilated.min() >= 0 else np.empty((0, 2))

    def extended(self, pivot, last, M, contrast):
        pivot = moved(pivot, last, 4)
        dilated = maximum_filter(M, footprint=draw_disc(3, (1, 1), 1), mode="constant")
        turns = np.deg2rad(np.arange(0, 360, 360 / (6 * np.pi)))
        points = np.stack([pivot[0] + 3 * np.sin(turns), pivot[1] + 3 * np.cos(turns)], 1)
        points = points[((points >= 0) & (points < 32)).all(1)]
        heads = np.unique(points.astype(int), axis=0)
        angles = np.arctan2(*(heads - pivot).T)
        change = np.abs(angles - last)
        change = np.minimum(np.minimum(change, 2 * np.pi - change), np.pi / 2)
        weights = np.cos(change) ** 2 * (1 - dilated[heads[:, 0], heads[:, 1]])
        if weights.sum() < 1e-4:
            return None
        for _ in range(3):
            i = int(np.argmax(np.cumsum(weights) / weights.sum() > self.rng.random()))
            back = angles[i] + np.pi if angles[i] < 0 else angles[i] - np.pi
            line, mask = self.drawn(back, contrast, heads[i])
            if (M + mask).max() < 1.8:
                return pivot, angles[i], line, mask, tuple(heads[i])
        return None

    def targets(self):
        M = np.ones((32, 32))
        M[1:-1, 1:-1] = 0
        if (one := self.seed(M, 14)) is None or (two := self.seed(M, 0, one[0])) is None:
            return None
        tips = [(pivot, angle) for _, pivot, angle in (one, two)]
        drawn = [self.drawn(angle, 1.5, tail) for tail, _, angle in (one, two)]
        images, masks = [line for line, _ in drawn], [mask for _, mask in drawn]
        heads = [None, None]
        for _ in range(self.length - 1):
            for s in (0, 1):
                if (new := self.extended(*tips[s], M, 1.5)) is None:
                    return None
                M = np.maximum(M, masks[s])
                tips[s], masks[s], heads[s] = new[:2], new[3], new[4]
                images[s] = np.maximum(images[s], new[2])
        return images, np.maximum(M, masks[1]), (one[0], two[0]), heads

    def distractor(self) -> bool:
        if (self.M <= 0.3).mean() < 0.01 or (seed := self.seed(self.M, 1)) is None:
            return False
        image, mask = self.drawn(seed[2], 2.0, seed[0])
        M, tip = self.M, seed[1:]
        for _ in range(self.length // 3 - 1):
            if (new := self.extended(*tip, M, 2.0)) is None:
                return False
            M, tip, mask = np.maximum(M, mask), new[:2], new[3]
            image = np.maximum(image, new[2])
        self.image, self.M = np.maximum(self.image, image), np.maximum(M, mask)
        return True
