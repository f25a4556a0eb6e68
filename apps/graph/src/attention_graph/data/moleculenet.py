"""MoleculeNet's small regression sets: measured properties of a few hundred or thousand molecules.

https://arxiv.org/abs/1703.00564; torch-geometric reads none but DeepChem's own file names.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiment_kit.data.paths import find_dataset
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import SUBFOLDERS, GraphData
from attention_graph.data.graph_cache import MoleculeSource
from attention_graph.data.graph_store import GraphStore, split_by_tenths
from attention_graph.data.smiles_files import featurize_row, read_csv_rows

_HINT = "`make data DATA=esol` fetches it"


class _Table(NamedTuple):
    """Names of a file and of its target column; DeepChem's own come first."""

    files: tuple[str, ...]
    target: tuple[str, ...]


_TABLES = {
    "esol": _Table(
        ("delaney-processed.csv", "esol.csv", "ESOL.csv"),
        ("measured log solubility in mols per litre", "logSolubility"),
    ),
    "freesolv": _Table(("SAMPL.csv", "freesolv.csv", "FreeSolv.csv"), ("expt",)),
    "lipophilicity": _Table(("Lipophilicity.csv", "lipophilicity.csv"), ("exp",)),
}


class MoleculeNet(GraphData):
    """Solubility in water (esol), hydration energy (freesolv) or lipophilicity of molecules.

    log10 of mol/l, kcal/mol, logD at pH 7.4. The features are OGB's. No split is official: 80 % of
    the molecules are for training, 10 % for validation and 10 % for testing, by a shuffle of the
    file's rows that is the same for every run. `target_mean` and `target_std` are those of the
    training split.

    Source: https://arxiv.org/abs/1703.00564
    """

    DATASETS = tuple(_TABLES)
    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the csv file; raises UserError if there is none."""
        files = _TABLES[dataset_name].files
        paths = [f"{folder}{file}" for folder in ("moleculenet/", "") for file in files]
        return find_dataset(data_dir, paths, Path.is_file, _HINT, SUBFOLDERS)

    @cached_property
    def stores(self) -> dict[str, GraphStore]:
        """The three splits, the same in both protocols."""
        path = self.find_data(self.dataset_name, self.data_dir)
        records = partial(read_csv_rows, path, ("smiles",), _TABLES[self.dataset_name].target)
        source = MoleculeSource(self.dataset_name, (path,), records, featurize_row)
        return split_by_tenths(self.open_store(source))

    @property
    def target_mean(self) -> float:
        """Mean of the training targets."""
        return float(self.stores["train"].targets.mean(dtype=np.float64))

    @property
    def target_std(self) -> float:
        """Standard deviation of the training targets; 1 if they are all the same."""
        return float(self.stores["train"].targets.std(dtype=np.float64)) or 1.0

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Return the three splits."""
        return self.stores
