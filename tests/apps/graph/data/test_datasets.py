"""Every data set with a few molecules, in each layout that is published."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_graph.chemistry.features import featurize_zinc
from attention_graph.data import PCQM, MoleculeNet, SyntheticMolecules, Zinc
from experiment_kit.errors import UserError
from torch_geometric.data import Data

from tests.apps.graph.data.files import (
    PCQM_SPLIT,
    SMILES,
    SPLITS,
    load_splits,
    write_pcqm,
    write_table,
    write_zinc_arrays,
    write_zinc_pickles,
    zinc_arrays,
)

pytestmark = pytest.mark.usefixtures("workdir")


def load_zinc(name: str = "zinc", **options):
    return load_splits(Zinc(name, data_dir=".", **options))


def as_lists(graph: Data) -> tuple:
    """Atoms and bonds; the files list bonds in different orders."""
    bonds = zip(*graph.edge_index.tolist(), graph.edge_attr[:, 0].tolist(), strict=True)
    return graph.x.tolist(), sorted(bonds)


def test_synthetic_molecules_are_split_alike_for_every_seed() -> None:
    one, other = (load_splits(SyntheticMolecules(count=20, seed=seed)) for seed in (0, 5))
    assert {split: len(store) for split, store in one.items()} == {"train": 16, "val": 2, "test": 2}
    assert one["train"].targets.std() > 0.3
    assert other["test"].rows.tolist() == one["test"].rows.tolist()


@pytest.mark.parametrize("folder", ["molecules", "ZINC/raw", "ZINC/molecules", "graph/molecules"])
def test_zinc_as_benchmarking_gnns_has_it(folder, workdir, capsys) -> None:
    write_zinc_pickles(workdir / folder)
    write_zinc_arrays(workdir / "zinc12k.npz")  # a substitute, which the official files precede
    splits = load_zinc()
    assert splits["train"].rows.tolist() == [4, 0, 7]
    assert splits["val"].targets.tolist() == [6, 1, 9]
    assert as_lists(splits["train"][1]) == as_lists(featurize_zinc(SMILES[0]))
    full = load_zinc("zinc_full")
    assert [len(full[split]) for split in SPLITS] == [11, 11, 11]
    notes = capsys.readouterr().err.splitlines()
    assert ["1 of 12 molecules of zinc_full" in note for note in notes] == [True] * 3


def test_zinc_as_arrays(workdir, capsys) -> None:
    write_zinc_arrays(workdir / "graph/zinc/zinc12k.npz")
    splits = load_zinc(protocol="test")
    assert "a substitute of the training ones" in capsys.readouterr().err
    assert splits["val"] is splits["test"]
    for row, smiles in enumerate(SMILES):
        assert as_lists(splits["train"][row]) == as_lists(featurize_zinc(smiles))
        assert splits["train"][row].y.item() == row


def test_a_missing_zinc_is_reported(workdir, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"no ZINC/molecules .* or its folder graph/ .*data zinc"):
        load_zinc()
    write_zinc_arrays(workdir / "zinc/zinc12k.npz")
    with pytest.raises(UserError, match=r"no ZINC/molecules"):
        load_zinc("zinc_full")
    monkeypatch.setenv("DATA_DIR", str(workdir))
    assert Zinc.find_data("zinc") == workdir / "zinc"


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


class EvilStorage:
    def __reduce__(self):
        return torch.storage._load_from_bytes, (pickle.dumps(Evil(), 2),)


@pytest.mark.parametrize(("file", "content", "sentence"), [
    ("val.pickle", Evil(), r"val.pickle cannot be read as a pickle of data"),
    ("val.pickle", EvilStorage(), r"val.pickle cannot be read as a pickle of data"),
    ("val.pickle", b"", r"val.pickle cannot be read as a pickle of data: Ran out of input"),
    ("val.pickle", [torch.nn.ReLU()], r"needs torch.nn.modules.activation.ReLU"),
    ("val.pickle", [{}] * 11, r"val.pickle holds no molecules with atom_type"),
    ("train.index", b"1,x", r"train.index must hold numbers"),
    ("train.index", b"12", r"train.pickle holds no molecules .*: list index out of range"),
])  # fmt: skip
def test_damaged_files_of_benchmarking_gnns_are_refused(file, content, sentence, workdir) -> None:
    write_zinc_pickles(workdir / "molecules")
    raw = content if isinstance(content, bytes) else pickle.dumps(content)
    (workdir / "molecules" / file).write_bytes(raw)
    with pytest.raises(UserError, match=sentence):
        load_zinc()
    assert not Path("owned").exists()


def test_damaged_arrays_are_refused(workdir) -> None:
    write_zinc_arrays(workdir / "zinc/zinc12k.npz", atom_types=np.array(["C", "O"]))
    with pytest.raises(UserError, match="atom_types are not the 28 of ZINC"):
        load_zinc()
    (workdir / "zinc/zinc12k.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"zinc12k.npz cannot be read"):
        load_zinc()


def test_types_that_zinc_does_not_have_are_skipped(workdir, capsys) -> None:
    atoms = np.concatenate([zinc_arrays(smiles)[0] for smiles in SMILES])
    atoms[0] = 28
    write_zinc_arrays(workdir / "zinc/zinc12k.npz", train_atom=atoms)
    assert load_zinc()["train"].rows.tolist() == list(range(1, 11))
    assert "1 with atoms or bonds that ZINC does not have (row 1)" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["pcqm4m-v2", "pcqm4mv2/pcqm4m-v2", "graph/pcqm4m_kddcup2021"])
def test_pcqm_by_its_official_split(folder, workdir, capsys) -> None:
    def load(**options):
        name = "pcqm4m" if "kddcup" in folder else "pcqm4mv2"
        return load_splits(PCQM(name, data_dir=".", val_fraction=0.4, **options))

    write_pcqm(workdir / folder, PCQM_SPLIT)
    splits = load()
    assert splits["test"].rows.tolist() == [2, 7]
    assert splits["test"].targets.tolist() == [0.5, 1.75]
    held_out, kept = (splits[split].rows.tolist() for split in ("val", "train"))
    assert (len(held_out), sorted(held_out + kept)) == (2, PCQM_SPLIT["train"])
    others = [load(seed=seed)["val"].rows.tolist() for seed in range(5)]
    assert others[0] == held_out
    assert len(set(map(tuple, others))) > 1
    papers = load(protocol="test")
    assert papers["train"].rows.tolist() == PCQM_SPLIT["train"]
    assert papers["val"] is papers["test"]
    assert splits["test"][0].x.shape[1] == 9
    assert capsys.readouterr().err == "", "hidden labels count as skipped molecules"


@pytest.mark.parametrize(("split", "sentence"), [
    ({"train": [0, 1]}, "split_dict.pt has the parts train, not train and valid"),
    ({"train": [0, 30], "valid": [2]}, "data.csv.gz has 10 rows, and its split names row 31"),
    ({"train": [0.5]}, "split_dict.pt cannot be read as arrays"),
    (None, r"no pcqm4m-v2 in DATA_DIR .*data pcqm4mv2"),
])  # fmt: skip
def test_a_wrong_split_of_pcqm_is_refused(split, sentence, workdir) -> None:
    if split is not None:
        write_pcqm(workdir / "pcqm4m-v2", split)
    with pytest.raises(UserError, match=sentence):
        load_splits(PCQM("pcqm4mv2", data_dir="."))


def write_esol(rows: int = 40) -> Path:
    lines = [(SMILES[row % 8], row / 7) for row in range(rows)]
    return write_table(Path("moleculenet/esol.csv"), lines, "smiles,logSolubility")


def test_moleculenet_splits_rows_and_scales_by_the_training_split(capsys) -> None:
    path = write_esol(rows=5)
    with pytest.raises(UserError, match=r"esol has 5 molecules: too few"):
        MoleculeNet("esol", data_dir=".").setup("fit")
    write_esol()
    data = MoleculeNet("esol", data_dir=".", batch_size=5, seed=1)
    rows = {split: set(store.rows.tolist()) for split, store in load_splits(data).items()}
    assert [len(rows[split]) for split in SPLITS] == [32, 4, 4]
    assert set.union(*rows.values()) == set(range(40))
    targets = np.array(sorted(rows["train"])) / 7
    assert data.target_mean == pytest.approx(targets.mean(), rel=1e-6)
    assert data.target_std == pytest.approx(targets.std(), rel=1e-6)
    path.write_text(path.read_text().replace("CCO,0.0\n", "C1CC,0.0\n"))
    again = load_splits(MoleculeNet("esol", data_dir=".", protocol="test", seed=2))
    note = "1 of 40 molecules of esol are skipped: 1 with an invalid SMILES (row 1)"
    assert note in capsys.readouterr().err
    for split in ("train", "test"):
        assert set(again[split].rows.tolist()) == rows[split] - {0}
    assert again["val"] is again["test"]


def test_moleculenet_reads_deepchems_own_columns() -> None:
    header = "Compound ID,measured log solubility in mols per litre,smiles"
    rows = [(f"c{row}", row, "CCO ") for row in range(10)]
    write_table(Path("delaney-processed.csv"), rows, header)
    data = MoleculeNet("esol", data_dir=".")
    assert data.target_mean == np.mean(data.stores["train"].rows)
    with pytest.raises(UserError, match=r"no moleculenet/SAMPL.csv in DATA_DIR .*allpass data"):
        MoleculeNet("freesolv", data_dir=".").setup("fit")
    with pytest.raises(UserError, match=r"set DATA_DIR"):
        MoleculeNet.find_data("esol")
