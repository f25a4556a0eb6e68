"""Counts of the data that is here, beside those of AGF's Tables 8 and 9."""

from pathlib import Path

import numpy as np
import pytest
from attention_sequence.data import UEA, Image, ListOps, Pathfinder, Retrieval, Text
from attention_sequence.data.uea import find_ts_file, read_ts_file


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path


def write_lines(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("line\n" * count)


def test_series_are_counted_as_they_are_read() -> None:
    counts = UEA.count_samples("JapaneseVowels")
    train, test = (read_ts_file(find_ts_file("JapaneseVowels", s, None)) for s in ("TRAIN", "TEST"))
    lengths = [series.shape[1] for series in (*train.series, *test.series)]
    assert counts == {
        "train": len(train.series),
        "test": len(test.series),
        "features": len(train.series[0]),
        "length": max(lengths),
        "classes": len(np.unique(train.labels)),
    }


def test_the_long_range_arena_is_counted(root: Path) -> None:
    for split, count in {"train": 7, "test": 3}.items():
        write_lines(root / f"listops-1000/basic_{split}.tsv", count + 1)
        write_lines(root / f"tsv_data/new_aan_pairs.{split}.tsv", count)
        for name in range(count):
            for label in ("pos", "neg"):
                write_lines(root / f"aclImdb/{split}/{label}/{name}.txt", 1)
    assert ListOps.count_samples("listops-1000") == {"train": 7, "test": 3}
    assert Retrieval.count_samples("aan") == {"train": 7, "test": 3}
    assert Text.count_samples("imdb") == {"train": 14, "test": 6}
    cifar, drawings = root / "cifar-10-batches-bin", root / "pathfinder32/curv_baseline"
    cifar.mkdir()
    for name, count in {"data_batch_1": 20, "data_batch_2": 10, "test_batch": 5}.items():
        (cifar / f"{name}.bin").write_bytes(bytes(3073 * count))
    assert Image.count_samples("cifar10") == {"train": 27, "test": 5}
    write_lines(drawings / "imgs/full", 1)
    (drawings / "imgs/empty").touch()
    (drawings / "metadata").mkdir()
    (drawings / "metadata/0.npy").write_text("imgs full 0 1\n" * 20 + "imgs empty 0 1\n")
    assert Pathfinder.count_samples("curv_baseline") == {"train": 16, "test": 2}
