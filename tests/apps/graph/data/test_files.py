"""Files of SMILES and pickles: their content, and errors for damaged or dangerous ones."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from attention_graph.data.safe_pickle import load_pickle
from attention_graph.data.smiles_files import read_smi_rows
from experiment_kit.errors import UserError


def test_a_list_has_the_smiles_of_each_line() -> None:
    Path("a.smi").write_text("CCO ethanol\n\nC\n")
    assert [record.content for record in read_smi_rows(Path("a.smi"))] == ["CCO", "", "C"]
    Path("a.smi").write_text("")
    with pytest.raises(UserError, match=r"a.smi is empty"):
        list(read_smi_rows(Path("a.smi")))


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
