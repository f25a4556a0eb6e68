"""Texts of the Long Range Arena: files, the ids that a model receives, and bad files."""

from pathlib import Path

import numpy as np
import pytest
from attention_sequence.data import ListOps, Retrieval, Text
from experiment_kit.errors import UserError

from tests.apps.sequence.long_range_files import SPLITS, set_up, write_listops


def test_an_expression_is_its_tokens_without_parentheses(tmp_path) -> None:
    folder = write_listops(tmp_path)
    row = "( ( ( [MIN 4 ) ( ( [SM 7 ) ] ) ) ] )\t4\n"
    (folder / "basic_test.tsv").write_text("Source\tTarget\n" + row)
    data = set_up(ListOps("listops-1000", str(tmp_path), truncate=9, max_length=11))
    assert [len(data.splits[split]) for split in SPLITS] == [22, 6, 1]
    ids, mask, label = data.splits["test"][0]
    # 0..9 are 1..10, then [MAX [MED [MIN [SM ] in this order
    assert ids.tolist() == [13, 5, 14, 8, 15, 15, 0, 0, 0, 0, 0]
    assert mask.tolist() == [True] * 6 + [False] * 5
    assert label == 4


def test_whole_batches_alone_are_scored_if_asked(tmp_path) -> None:
    write_listops(tmp_path)
    options = {"truncate": 9, "max_length": 11, "batch_size": 4}
    data = set_up(ListOps("listops-1000", str(tmp_path), drop_last_scored=True, **options))
    assert [len(data.splits[split]) for split in SPLITS] == [22, 4, 4]
    everything = set_up(ListOps("listops-1000", str(tmp_path), **options))
    assert [len(everything.splits[split]) for split in SPLITS] == [22, 6, 5]


REVIEWS = "0\t1_1\tBad.\\nV\u00e9ry\\tbad\n" + "0\t2_2\tNo\n" + "1\t3_9\tGood\n" * 8


def write_reviews(root: Path, train: str = REVIEWS) -> None:
    (root / "imdb").mkdir()
    for split, rows in {"train": train, "test": REVIEWS}.items():
        (root / f"imdb/imdb_{split}.tsv").write_text(rows)


def test_a_review_is_its_bytes(tmp_path) -> None:
    write_reviews(tmp_path)
    data = set_up(Text("imdb", str(tmp_path), truncate=12, max_length=13))
    ids, mask, label = max(data.splits["test"], key=lambda item: int(item[1].sum()))
    assert ids.tolist() == [byte + 1 for byte in "Bad.\nV\u00e9ry\tbad".encode()[:12]] + [0]
    assert (int(mask.sum()), label) == (12, 0)


def test_folders_of_reviews_are_read_as_the_table_is(tmp_path, capsys) -> None:
    for split in ("train", "test"):
        for name, texts in {"neg": ["Bad", "No"], "pos": ["Good"]}.items():
            (tmp_path / f"aclImdb/{split}/{name}").mkdir(parents=True)
            for number, text in enumerate(texts):
                (tmp_path / f"aclImdb/{split}/{name}/{number}_1.txt").write_text(text)
    data = set_up(Text("imdb", str(tmp_path), protocol="test", truncate=4, max_length=5))
    shown = [(bytes(int(i) - 1 for i in ids if i), y) for ids, _, y in data.splits["train"]]
    assert sorted(shown) == [(b"Bad", 0), (b"Good", 1), (b"No", 0)]
    assert "has 3 of 25000 reviews to train" in capsys.readouterr().err
    (tmp_path / "aclImdb/train/neg/7_1.txt").touch()
    with pytest.raises(UserError, match=r"7_1.txt is empty"):
        Text("imdb", str(tmp_path)).setup("fit")


def test_the_first_reviews_that_are_scored_are_of_both_kinds(tmp_path) -> None:
    write_reviews(tmp_path)
    sorted_rows = "".join(f"{label}\t1_1\tText\n" for label in (0, 1) for _ in range(40))
    (tmp_path / "imdb/imdb_test.tsv").write_text(sorted_rows)
    both = [set_up(Text("imdb", str(tmp_path), seed=seed)).splits["test"].labels for seed in (0, 1)]
    assert set(both[0][:20]) == {0, 1}
    assert np.array_equal(*both)


def test_reviews_are_held_back_unless_the_development_set_is_the_test_set(tmp_path) -> None:
    write_reviews(tmp_path)
    data = set_up(Text("imdb", str(tmp_path), val_fraction=0.25))
    assert [len(data.splits[split]) for split in SPLITS] == [7, 3, 10]
    assert sorted(label for *_, label in data.splits["val"]) == [0, 1, 1]
    published = set_up(Text("imdb", str(tmp_path), protocol="test"))
    assert len(published.splits["train"]) == 10
    assert published.splits["val"] is published.splits["test"]


def test_a_pair_of_papers_stays_two_sequences(tmp_path) -> None:
    rows = "1.0\tA00\tB11\tab\tcde\r\n0.0\tA0\tB1\tfghij\t\u00e9\n"
    (tmp_path / "tsv_data").mkdir()
    for split in ("train", "eval", "test"):
        (tmp_path / f"tsv_data/new_aan_pairs.{split}.tsv").write_text(rows)
    data = set_up(Retrieval("aan", str(tmp_path), truncate=4, max_length=5))
    ids, mask, label = data.splits["val"][0]
    assert ids.tolist() == [[98, 99, 0, 0, 0], [100, 101, 102, 0, 0]]
    assert (mask.sum(1).tolist(), label) == ([2, 3], 1)
    ids, _, label = data.splits["train"][1]
    assert ids.tolist() == [[103, 104, 105, 106, 0], [0xC3 + 1, 0xA9 + 1, 0, 0, 0]]
    assert label == 0


def test_the_folders_of_the_release_are_found(tmp_path) -> None:
    nested = tmp_path / "lra_release/lra_release"
    nested.mkdir(parents=True)
    write_listops(nested)
    assert len(set_up(ListOps("listops-1000", str(tmp_path))).splits["val"]) == 6


def test_expressions_can_be_drawn_where_there_are_none(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    data = set_up(ListOps("drawn"))
    assert [len(data.splits[split]) for split in SPLITS] == [1920, 40, 40]
    assert all(500 < int(mask.sum()) < 2000 for _, mask, _ in data.splits["val"])
    (file,) = Path("runs/data/listops-drawn").rglob("basic_test.tsv")
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])  # a row is missing
    assert len(set_up(ListOps("drawn")).splits["test"]) == 40
    assert "basic_test.tsv is missing or not as it was written" in capsys.readouterr().err
