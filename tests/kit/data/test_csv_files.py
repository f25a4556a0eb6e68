"""Csv files: cells by the names of their columns, plain or gzipped; more files are in the apps."""

import gzip
from pathlib import Path

import pytest
from experiment_kit.data.csv_files import read_csv_cells
from experiment_kit.errors import UserError

COLUMNS = ("text", ("y", "label"))
CONTENT = '\ufefflabel, text,more\n\n1,"two\nlines, quoted"\n 2 , b ,x\n'.encode()


@pytest.mark.parametrize(("name", "pack"), [("a.csv", bytes), ("b.csv", gzip.compress)])
def test_cells_of_named_columns(name, pack, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(UserError, match=f"{name} cannot be read: .* No such file"):
        list(read_csv_cells(path, COLUMNS))
    path.write_bytes(pack(CONTENT))
    found = list(read_csv_cells(path, COLUMNS))
    assert found == [(4, ["two\nlines, quoted", "1"]), (5, ["b", "2"])]
    path.write_bytes(pack(b"text,z\na,1\n"))
    with pytest.raises(UserError, match=f"{name} has no column 'y' or 'label', but text, z$"):
        list(read_csv_cells(path, COLUMNS))


def test_a_gzipped_file_that_is_cut_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CONTENT)[:-9])
    with pytest.raises(UserError, match=r"a.csv.gz cannot be read: Compressed file ended"):
        list(read_csv_cells(tmp_path / "a.csv.gz", COLUMNS))
