"""MoleculeNet: a split of rows, and targets scaled by the training split."""

from pathlib import Path

import numpy as np
import pytest
from attention_graph.data import MoleculeNet
from experiment_kit.errors import UserError

from tests.apps.graph.data.files import SMILES, load_splits, write_table


def write_esol(folder: Path, rows: int = 40) -> Path:
    lines = [(SMILES[row % 8], row / 7) for row in range(rows)]
    return write_table(folder / "moleculenet/esol.csv", lines, "smiles,logSolubility")


def test_moleculenet_splits_rows_and_scales_by_the_training_part(here, capsys) -> None:
    path = write_esol(here)
    data = MoleculeNet("esol", data_dir=str(here), batch_size=5, seed=1)
    load_splits(data)
    splits = {split: set(store.rows.tolist()) for split, store in data.splits.items()}
    assert [len(splits[part]) for part in ("train", "val", "test")] == [32, 4, 4]
    assert set.union(*splits.values()) == set(range(40))
    targets = np.array(sorted(splits["train"])) / 7
    assert data.target_mean == pytest.approx(targets.mean(), rel=1e-6)
    assert data.target_std == pytest.approx(targets.std(), rel=1e-6)
    text = path.read_text().replace("CCO,0.0\n", "C1CC,0.0\n")
    path.write_text(text)
    again = MoleculeNet("esol", data_dir=str(here), protocol="test", seed=2)
    load_splits(again)
    assert "1 of 40 molecules of esol are skipped: 1 with an invalid SMILES (row 1)" in (
        capsys.readouterr().err
    )
    assert set(again.splits["train"].rows.tolist()) == splits["train"] - {0}
    assert set(again.splits["test"].rows.tolist()) == splits["test"] - {0}
    assert again.splits["val"] is again.splits["test"]


def test_moleculenet_reads_deepchems_own_columns(here) -> None:
    header = "Compound ID,measured log solubility in mols per litre,smiles"
    write_table(
        here / "delaney-processed.csv", [(f"c{row}", row, "CCO ") for row in range(10)], header
    )
    data = MoleculeNet("esol", data_dir=str(here))
    assert data.target_mean == np.mean(data.stores["train"].rows)
    with pytest.raises(UserError, match=r"no moleculenet/SAMPL.csv in DATA_DIR .*download"):
        MoleculeNet("freesolv", data_dir=str(here)).setup("fit")
    with pytest.raises(UserError, match=r"set DATA_DIR"):
        MoleculeNet.find_data("esol")


def test_too_few_molecules_to_split(here) -> None:
    write_esol(here, rows=5)
    with pytest.raises(UserError, match=r"esol has 5 molecules: too few .*no val"):
        MoleculeNet("esol", data_dir=str(here)).setup("fit")
