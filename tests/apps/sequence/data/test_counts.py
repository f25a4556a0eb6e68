"""Counts of the data that is here, beside those of AGF's Tables 8 and 9."""

from pathlib import Path

import numpy as np
import pytest
from attention_sequence.data import UEA, Image, ListOps, Pathfinder, Retrieval, Text
from attention_sequence.data.uea import find_ts_file, read_ts_file

from tests.apps.sequence.long_range_files import write_cifar, write_listops, write_pathfinder


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
    write_listops(root)
    write_cifar(root)
    folder = write_pathfinder(root)
    (folder / "imgs/0/sample_3.png").write_bytes(b"")  # left out
    for split, count in {"train": 7, "test": 3}.items():
        write_lines(root / f"tsv_data/new_aan_pairs.{split}.tsv", count)
        for name in range(count):
            for label in ("pos", "neg"):
                write_lines(root / f"aclImdb/{split}/{label}/{name}.txt", 1)
    assert ListOps.count_samples("listops-1000") == {"train": 22, "test": 5}
    assert ListOps.count_samples("drawn") == {"train": 1920, "test": 40}
    assert Retrieval.count_samples("aan") == {"train": 7, "test": 3}
    assert Text.count_samples("imdb") == {"train": 14, "test": 6}
    assert Image.count_samples("cifar10") == {"train": 18, "test": 5}
    assert Pathfinder.count_samples(folder.name) == {"train": 23, "test": 3}
