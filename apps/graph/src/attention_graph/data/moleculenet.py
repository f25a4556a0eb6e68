"""MoleculeNet's small regression sets: measured properties of a few hundred or thousand molecules.

https://arxiv.org/abs/1703.00564; torch-geometric reads none but DeepChem's own file names.
"""

from pathlib import Path
from typing import NamedTuple

from experiment_kit.data.datamodule import find_dataset

from attention_graph.data.base import SUBFOLDERS
from attention_graph.data.csv_molecules import CsvMolecules, MoleculeTable

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


class MoleculeNet(CsvMolecules):
    """Solubility in water (esol), hydration energy (freesolv) or lipophilicity of molecules.

    log10 of mol/l, kcal/mol, logD at pH 7.4. The features are OGB's. No split is official: 80 % of
    the molecules are for training, 10 % for validation and 10 % for testing, by a shuffle of the
    file's rows that is the same for every run. `target_mean` and `target_std` are those of the
    training split.

    Source: https://arxiv.org/abs/1703.00564
    """

    DATASETS = tuple(_TABLES)

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the csv file; raises UserError if there is none."""
        files = _TABLES[dataset_name].files
        paths = [f"{folder}{file}" for folder in ("moleculenet/", "") for file in files]
        return find_dataset(data_dir, paths, Path.is_file, _HINT, SUBFOLDERS)

    def find_table(self) -> MoleculeTable:
        """Find the csv file; raises UserError if there is none."""
        path = self.find_data(self.dataset_name, self.data_dir)
        target = _TABLES[self.dataset_name].target
        return MoleculeTable(path, self.dataset_name, ("smiles",), target)
