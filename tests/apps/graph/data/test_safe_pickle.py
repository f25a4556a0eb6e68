"""Pickles that would run code are refused."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from attention_graph.data.safe_pickle import load_pickle, load_row_numbers
from experiment_kit.errors import UserError


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def test_a_function_is_no_way_in(here: Path) -> None:
    (here / "a.pickle").write_bytes(pickle.dumps([Evil()]))
    with pytest.raises(UserError, match=r"a.pickle .* needs posix.mkdir, and only data is read"):
        load_pickle(here / "a.pickle")
    assert not (here / "owned").exists()


def test_a_tensors_bytes_are_no_way_in(here) -> None:
    class Inside:
        def __reduce__(self):
            return torch.storage._load_from_bytes, (pickle.dumps(Evil(), 2),)

    (here / "a.pickle").write_bytes(pickle.dumps(Inside()))
    with pytest.raises(UserError, match=r"a.pickle cannot be read as a pickle of data"):
        load_pickle(here / "a.pickle")
    torch.save({"train": Evil()}, here / "split.pt")
    with pytest.raises(UserError, match=r"split.pt cannot be read as arrays of row numbers"):
        load_row_numbers(here / "split.pt")
    assert not (here / "owned").exists()
