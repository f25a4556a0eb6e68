"""Files of SMILES and pickles: their content, and errors for damaged or dangerous ones."""

import gzip
import os
import pickle
from pathlib import Path

import pytest
import torch
from attention_graph.data.graph_cache import Record
from attention_graph.data.safe_pickle import load_pickle, load_row_numbers
from attention_graph.data.smiles_files import read_csv_rows, read_lines
from experiment_kit.errors import UserError

from tests.apps.graph.data.files import SMILES, write_table


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"a.csv is empty"),
        (b"name,y\nCC,1\n", r"a.csv has no column 'smiles', but name, y"),
        (b"smiles,z\nCC,1\n", r"a.csv has no column 'y', but smiles, z"),
        (b"smiles,y\nC\xff,1\n", r"a.csv is not text in UTF-8 \(invalid start byte\)"),
        (b'smiles,y\n"' + b"C" * 200_000 + b'",1\n', r"a.csv cannot be read: field larger"),
    ],
)
def test_a_damaged_table_is_refused(content, sentence) -> None:
    Path("a.csv").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        list(read_csv_rows(Path("a.csv"), ("smiles",), ("y",)))


def test_a_gzipped_table_is_read_and_a_broken_one_refused() -> None:
    rows = [(smiles, row) for row, smiles in enumerate(SMILES)]
    whole, path = gzip.compress(write_table(Path("a.csv"), rows).read_bytes()), Path("a.csv.gz")
    path.write_bytes(whole)
    found = list(read_csv_rows(path, ("smiles",), ("y",)))
    assert [record.content for record in found] == rows
    for content in (whole[:-12], b"CCO"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a.csv.gz cannot be read"):
            list(read_csv_rows(path, ("smiles",), ("y",)))


def test_a_table_may_have_a_bom_quotes_and_short_or_blank_rows() -> None:
    Path("a.csv").write_bytes(b'\xef\xbb\xbfy, smiles\n\n1,"CC" \n2\n')
    found = list(read_csv_rows(Path("a.csv"), ("smiles",), ("y",)))
    assert found == [Record(0, ("CC", 1.0), 2), Record(1, ("", 2.0), 0)]


def test_a_list_has_the_smiles_of_each_line() -> None:
    Path("a.smi").write_text("CCO ethanol\n\nC\n")
    assert [record.content for record in read_lines(Path("a.smi"))] == ["CCO", "", "C"]
    Path("a.smi").write_text("")
    with pytest.raises(UserError, match=r"a.smi is empty"):
        list(read_lines(Path("a.smi")))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


class EvilStorage:
    def __reduce__(self):
        return torch.storage._load_from_bytes, (pickle.dumps(Evil(), 2),)


def test_a_pickle_that_would_run_code_is_refused() -> None:
    path = Path("a.pickle")
    for content, message in (
        (Evil(), r"a.pickle .* needs posix.mkdir, and only data is read"),
        (EvilStorage(), r"a.pickle cannot be read as a pickle of data"),
    ):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(UserError, match=message):
            load_pickle(path)
    torch.save({"train": Evil()}, path)
    with pytest.raises(UserError, match=r"a.pickle cannot be read as arrays of row numbers"):
        load_row_numbers(path)
    assert not Path("owned").exists()
