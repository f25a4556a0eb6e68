"""Tables and lists of SMILES: what is read, and the sentences for damaged files."""

import gzip
from pathlib import Path

import pytest
from attention_graph.data.graph_cache import Record
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
def test_bad_tables_get_a_sentence(content, sentence) -> None:
    Path("a.csv").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        list(read_csv_rows(Path("a.csv"), ("smiles",), ("y",)))


def test_gzipped_tables_and_broken_ones() -> None:
    rows = [(smiles, row) for row, smiles in enumerate(SMILES)]
    whole, path = gzip.compress(write_table(Path("a.csv"), rows).read_bytes()), Path("a.csv.gz")
    path.write_bytes(whole)
    found = list(read_csv_rows(path, ("smiles",), ("y",)))
    assert [record.content for record in found] == rows
    for content in (whole[:-12], b"CCO"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a.csv.gz cannot be read"):
            list(read_csv_rows(path, ("smiles",), ("y",)))


def test_tables_with_bom_quotes_short_and_blank_rows() -> None:
    Path("a.csv").write_bytes(b'\xef\xbb\xbfy, smiles\n\n1,"CC" \n2\n')
    found = list(read_csv_rows(Path("a.csv"), ("smiles",), ("y",)))
    assert found == [Record(0, ("CC", 1.0), 2), Record(1, ("", 2.0), 0)]


def test_lists_of_smiles() -> None:
    Path("a.smi").write_text("CCO ethanol\n\nC\n")
    assert [record.content for record in read_lines(Path("a.smi"))] == ["CCO", "", "C"]
    Path("a.smi").write_text("")
    with pytest.raises(UserError, match=r"a.smi is empty"):
        list(read_lines(Path("a.smi")))
