"""Csv files: cells by the names of their columns, and the sentence on each mistake."""

import gzip
from pathlib import Path

import pytest
from experiment_kit.data.csv_files import read_csv_cells
from experiment_kit.errors import UserError

COLUMNS = ("text", ("y", "label"))


def test_cells_of_named_columns(tmp_path: Path) -> None:
    content = '\ufefflabel, text,more\n\n1,"two\nlines, quoted"\n 2 , b ,x\n'.encode()
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content))
    for name in ("a.csv", "b.csv.gz"):
        found = list(read_csv_cells(tmp_path / name, COLUMNS))
        assert found == [(4, ["two\nlines, quoted", "1"]), (5, ["b", "2"])]


def test_short_rows_have_empty_cells_where_they_may(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,y\na\n,2\n")
    found = [cells for _, cells in read_csv_cells(tmp_path / "a.csv", COLUMNS, allow_empty=True)]
    assert found == [["a", ""], ["", "2"]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a.csv is empty: its first line names the columns"),
        (b"text,z\na,1\n", "a.csv has no column 'y' or 'label', but text, z$"),
        (b"text,label\n", "a.csv has no rows"),
        (b"text,label\na,1\nb,\n", "a.csv, line 3: label is empty"),
        (b"text,y\n\xff,1\n", "a.csv cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (None, "a.csv cannot be read: .* No such file"),
    ],
)
def test_a_bad_file_is_a_sentence(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        list(read_csv_cells(tmp_path / "a.csv", COLUMNS))
