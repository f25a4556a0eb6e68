"""Csv files: cells by the names of their columns, plain or gzipped, and files that are none."""

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
        (gzip.compress(b"text,z\na,1\n"), "a.csv.gz has no column 'y' or 'label', but text, z$"),
        (gzip.compress(b""), "a.csv.gz is empty: its first line names the columns"),
        (gzip.compress(b"text,y\na,1\n")[:-9], "a.csv.gz cannot be read: Compressed file ended"),
        (None, "a.csv.gz cannot be read: .* No such file"),
    ],
)
def test_a_bad_file_is_a_sentence(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "a.csv.gz").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        list(read_csv_cells(tmp_path / "a.csv.gz", COLUMNS))
