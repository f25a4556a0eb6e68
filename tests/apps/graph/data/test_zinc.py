"""ZINC in every layout that is published, with a few molecules."""

import pickle

import numpy as np
import pytest
import torch
from attention_graph.chemistry import compute_penalized_logp, featurize_zinc
from attention_graph.data import Zinc, zinc
from experiment_kit.errors import UserError

from tests.apps.graph.data.files import (
    SMILES,
    SPLITS,
    dense_molecule,
    load_splits,
    write_zinc_arrays,
    write_zinc_pickles,
    write_zinc_smiles,
)


@pytest.mark.parametrize("folder", ["molecules", "ZINC/raw", "ZINC/molecules", "graph/molecules"])
def test_zinc_as_benchmarking_gnns_has_it(folder, here, capsys) -> None:
    write_zinc_pickles(here / folder)
    splits = load_splits(Zinc("zinc", data_dir=str(here)))
    assert splits["train"].rows.tolist() == [4, 0, 7]
    assert splits["val"].targets.tolist() == [6, 1, 9]
    graph, same = splits["train"][1], featurize_zinc(SMILES[0])
    assert graph.x.tolist() == same.x.tolist()
    assert sorted(map(tuple, graph.edge_index.T.tolist())) == sorted(
        map(tuple, same.edge_index.T.tolist())
    )
    assert graph.edge_attr.tolist() == same.edge_attr.tolist()
    full = load_splits(Zinc("zinc_full", data_dir=str(here)))
    assert [len(full[split]) for split in SPLITS] == [11, 11, 11]
    assert capsys.readouterr().err == ""


def test_zinc_as_arrays(here, capsys) -> None:
    write_zinc_arrays(here / "graph/zinc/zinc12k.npz")
    splits = load_splits(Zinc("zinc", data_dir=str(here), protocol="test"))
    assert "a substitute of the training ones" in capsys.readouterr().err
    assert splits["val"] is splits["test"]
    for row, smiles in enumerate(SMILES):
        graph, same = splits["train"][row], featurize_zinc(smiles)
        assert graph.x.tolist() == same.x.tolist()
        assert graph.edge_index.tolist() == same.edge_index.tolist()
        assert graph.edge_attr.tolist() == same.edge_attr.tolist()
        assert graph.y.item() == row


def test_official_pickles_come_before_a_substitute(here, capsys) -> None:
    write_zinc_arrays(here / "zinc12k.npz")
    write_zinc_pickles(here / "zinc/molecules")
    assert len(load_splits(Zinc("zinc", data_dir=str(here)))["train"]) == 3
    assert capsys.readouterr().err == ""


def test_zinc_as_smiles(here, capsys, monkeypatch) -> None:
    write_zinc_smiles(here / "zinc")
    full = load_splits(Zinc("zinc_full", data_dir=str(here)))
    assert capsys.readouterr().err == ""
    held = ["C#N", "CCO", "CF", "N", "CCl"]
    train = [row for row, smiles in enumerate(SMILES) if smiles not in held]
    assert full["train"].rows.tolist() == train
    assert [len(full[split]) for split in SPLITS] == [6, 2, 3]
    expected = [compute_penalized_logp(SMILES[row]) for row in train]
    np.testing.assert_allclose(full["train"].targets, expected, rtol=1e-6)
    monkeypatch.setattr(zinc, "_SUBSET_TRAIN", 4)
    small = load_splits(Zinc("zinc", data_dir=str(here)))
    assert "official validation and test molecules" in capsys.readouterr().err
    assert set(small["train"].rows.tolist()) < set(train)
    assert [len(small[split]) for split in SPLITS] == [4, 1, 2]
    assert small["test"].targets.tolist() == full["test"].targets[[2, 0]].tolist()


def test_no_zinc_is_said(here, monkeypatch) -> None:
    with pytest.raises(
        UserError, match=r"no ZINC/molecules in DATA_DIR .* or its folders graph/ .*downl"
    ):
        load_splits(Zinc("zinc", data_dir=str(here)))
    write_zinc_arrays(here / "zinc/zinc12k.npz")
    with pytest.raises(UserError, match=r"no ZINC/molecules"):
        load_splits(Zinc("zinc_full", data_dir=str(here)))
    monkeypatch.setenv("DATA_DIR", str(here))
    assert Zinc.find_data("zinc") == here / "zinc"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"val.pickle cannot be read as a pickle of data: Ran out of input"),
        (pickle.dumps([torch.nn.ReLU()]), r"needs torch.nn.modules.activation.ReLU"),
        (pickle.dumps(5), r"val.pickle holds a int, not a list of molecules"),
        (pickle.dumps([]), r"val.index names molecule 8, and .*val.pickle has 0"),
        (pickle.dumps([{}] * 11), r"val.pickle: molecule 6 must be a dict with atom_type"),
        (pickle.dumps([3] * 11), r"val.pickle: molecule 6 must be a dict"),
        (
            pickle.dumps([dense_molecule("CC", 1) | {"atom_type": torch.tensor([1])}] * 11),
            r"molecule 6 must be a dict .* of one size",
        ),
    ],
)
def test_other_pickles_are_refused(content, sentence, here) -> None:
    write_zinc_pickles(here / "molecules")
    (here / "molecules/val.pickle").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load_splits(Zinc("zinc", data_dir=str(here)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "is empty"), ("1,x", "must hold numbers"), ("3,-1", "names molecule -1"), ("11", "11,")],
)
def test_bad_index_files(text, sentence, here) -> None:
    write_zinc_pickles(here / "molecules")
    (here / "molecules/train.index").write_text(text)
    with pytest.raises(UserError, match=rf"train.index .*{sentence}|train.index {sentence}"):
        load_splits(Zinc("zinc", data_dir=str(here)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"atom_types": np.array(["C", "O"])}, "atom_types are not the 28 of ZINC"),
        ({"train_n": np.ones(11, np.uint8)}, "arrays of train disagree"),
        ({"train_y": np.ones(3)}, "arrays of train disagree"),
        ({"train_y": np.array([None])}, "cannot be read"),
    ],
)
def test_bad_arrays(changed, sentence, here) -> None:
    write_zinc_arrays(here / "zinc/zinc12k.npz", **changed)
    with pytest.raises(UserError, match=rf"zinc12k.npz.*{sentence}"):
        load_splits(Zinc("zinc", data_dir=str(here)))
    (here / "zinc/zinc12k.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"zinc12k.npz cannot be read"):
        load_splits(Zinc("zinc", data_dir=str(here)))


def test_wrong_types_and_bonds_to_nowhere_or_twice_are_skipped(here, capsys) -> None:
    write_zinc_arrays(here / "zinc/zinc12k.npz")
    with np.load(here / "zinc/zinc12k.npz") as file:
        atom, bond = file["train_atom"].copy(), file["train_bond"].copy()
    atom[0], bond[2, 0], bond[9] = 28, 9, bond[8]
    write_zinc_arrays(here / "zinc/zinc12k.npz", train_atom=atom, train_bond=bond)
    assert load_splits(Zinc("zinc", data_dir=str(here)))["train"].rows.tolist() == list(
        range(3, 11)
    )
    err = capsys.readouterr().err
    assert (
        "1 with atoms or bonds ZINC has not (row 1), 1 with bonds to nowhere (row 2),"
        " 1 with bonds given twice (row 3)"
    ) in err
