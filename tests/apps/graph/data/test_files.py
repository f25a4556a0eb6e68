"""Files of SMILES and pickles: their content, and errors for damaged or dangerous ones."""

import gzip
import os
import pickle
from pathlib import Path

import pytest
import torch
from attention_graph.data.graph_cache import Record
from attention_graph.data.safe_pickle import load_pickle
from attention_graph.data.smiles_files import read_csv_rows, read_lines
from experiment_kit.errors import UserError

from tests.apps.graph.data.files import SMILES, write_table


def test_a_table_may_be_gzipped_and_have_a_bom_quotes_and_short_or_blank_rows() -> None:
    rows = [(smiles, row) for row, smiles in enumerate(SMILES)]
    path = Path("a.csv.gz")
    path.write_bytes(gzip.compress(write_table(Path("a.csv"), rows).read_bytes()))
    assert [r.content for r in read_csv_rows(path, ("smiles",), ("y",))] == rows
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


@pytest.mark.parametrize("content", [Evil(), EvilStorage()])
def test_a_pickle_that_would_run_code_is_refused(content) -> None:
    Path("a.pickle").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=r"a.pickle cannot be read as a pickle of data"):
        load_pickle(Path("a.pickle"))
    assert not Path("owned").exists()
