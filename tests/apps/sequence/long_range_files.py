"""Small files in the layouts of the Long Range Arena."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from attention_sequence.data import LongRangeData
from PIL import Image

SPLITS = ("train", "val", "test")


def set_up(data: LongRangeData) -> LongRangeData:
    data.setup("fit")
    data.setup("test")
    return data


def expression(digits: Iterable[int]) -> str:
    return "( ( ( [MAX " + " ) ".join(map(str, digits)) + " ) ] )"


def write_listops(root: Path, train: int = 22) -> Path:
    generator = np.random.default_rng(0)
    folder = root / "listops-1000"
    folder.mkdir()
    for part, count in {"train": train, "val": 6, "test": 5}.items():
        rows = [generator.integers(0, 10, generator.integers(3, 30)) for _ in range(count)]
        lines = [f"{expression(row)}\t{row.max()}\r\n" for row in rows]
        (folder / f"basic_{part}.tsv").write_text("Source\tTarget\r\n" + "".join(lines))
    return folder


def write_pathfinder(root: Path, count: int = 30, side: int = 32) -> Path:
    generator = np.random.default_rng(0)
    folder = root / "pathfinder32" / "curv_contour_length_14"
    (folder / "imgs/0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    lines = []
    for number in range(count):
        pixels = generator.integers(0, 256, (side, side), np.uint8)
        pixels[0, 0] = 0
        Image.fromarray(pixels).save(folder / f"imgs/0/sample_{number}.png")
        lines.append(f"imgs/0 sample_{number}.png {number} {number % 2} 1.0 14 0.75\n")
    (folder / "metadata/0.npy").write_text("".join(lines))
    return folder


def write_cifar(root: Path, train: int = 20, test: int = 5) -> Path:
    generator = np.random.default_rng(0)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for name, count in {"data_batch_1": train, "test_batch": test}.items():
        records = generator.integers(0, 256, (count, 3073), np.uint8)
        records[:, 0] = np.arange(count) % 10
        records[:, [1, 1025, 2049]] = 0  # the first pixel is black
        records.tofile(folder / f"{name}.bin")
    return folder
