"""Molecules of csv files, a column of SMILES and one of numbers: MoleculeNet's, and own ones.

https://arxiv.org/abs/1703.00564; torch-geometric reads none but DeepChem's own file names.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from experiment_kit.data.csv_files import find_split_files
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.run_files import warn_once
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import SUBFOLDERS, GraphData
from attention_graph.data.graph_cache import MoleculeSource
from attention_graph.data.graph_store import GraphStore, split_by_tenths
from attention_graph.data.smiles_files import featurize_row, read_csv_rows

# the names that a file and its column of numbers may have; DeepChem's own come first
_MOLECULENET = {
    "esol": (
        ("delaney-processed.csv", "esol.csv", "ESOL.csv"),
        ("measured log solubility in mols per litre", "logSolubility"),
    ),
    "freesolv": (("SAMPL.csv", "freesolv.csv", "FreeSolv.csv"), ("expt",)),
    "lipophilicity": (("Lipophilicity.csv", "lipophilicity.csv"), ("exp",)),
}


class CsvMolecules(GraphData):
    """Molecules of a csv file, and the number that a column has for each.

    The features are OGB's. 80 % of the molecules are for training, 10 % for validation and 10 % for
    testing, by a shuffle of the rows that is the same for every run. The model scales its output by
    `target_mean` and `target_std`, those of the training split.
    """

    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS
    columns: tuple[Sequence[str], Sequence[str]]  # the names that SMILES and numbers may have
    cache_name: str

    @cached_property
    def stores(self) -> dict[str, GraphStore]:
        """The three splits, the same in both protocols."""
        if self.val_fraction != 0.1:
            raise ValueError("data.val_fraction: a tenth of the molecules validates: leave it out")
        first, *_ = self.list_data_files()
        splits = {}
        for split, path in find_split_files(first, self.columns).items():
            records = partial(read_csv_rows, path, *self.columns)
            source = MoleculeSource(self.cache_name, (path,), records, featurize_row)
            splits[split] = self.open_store(source)
        others = [split for split in ("val", "test") if split not in splits]
        splits |= split_by_tenths(splits["train"], others)
        y = splits["train"].targets
        if not np.ptp(y):
            warn_once(f"{first}: all training targets are {y[0]}")
        elif {*y} <= {0, 1}:
            warn_once(f"{first}: its targets are 0 and 1: these classes are learned as numbers")
        elif np.spacing(np.abs(y).max()) > 1e-3 * y.std(dtype=np.float64):
            warn_once(f"{first}: float32 rounds its targets: subtract a constant from them")
        return splits

    @property
    def target_mean(self) -> float:  # type: ignore[override]
        """Mean of the training targets."""
        return float(self.stores["train"].targets.mean(dtype=np.float64))

    @property
    def target_std(self) -> float:  # type: ignore[override]
        """Standard deviation of the training targets; 1 if they are all the same."""
        return float(self.stores["train"].targets.std(dtype=np.float64)) or 1.0

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Return the three splits."""
        return self.stores


class MoleculeNet(CsvMolecules):
    """Solubility in water (esol), hydration energy (freesolv) or lipophilicity of molecules.

    log10 of mol/l, kcal/mol, logD at pH 7.4. No split is official.
    """

    DATASETS = tuple(_MOLECULENET)

    def __init__(self, dataset_name: str, **kwargs: Any) -> None:
        super().__init__(dataset_name, **kwargs)
        self.cache_name, self.columns = dataset_name, (("smiles",), _MOLECULENET[dataset_name][1])

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the csv file."""
        files, _ = _MOLECULENET[dataset_name]
        paths = [f"{folder}{file}" for folder in ("moleculenet/", "") for file in files]
        hint = "`allpass data esol` fetches it"
        return find_dataset(data_dir, paths, Path.is_file, hint, SUBFOLDERS)


class SmilesCSV(CsvMolecules):
    """Own molecules of a csv file.

    A `test.csv` and a `valid.csv` beside a `train.csv` are its splits.

    Args:
        file: Name of the csv file in DATA_DIR.
        smiles_column: Name of the column of SMILES.
        target_column: Name of the column of numbers.
    """

    DATASETS = ("smiles_csv",)

    def __init__(
        self,
        dataset_name: str = "smiles_csv",
        data_dir: str | None = None,
        file: str = "molecules.csv",
        smiles_column: str = "smiles",
        target_column: str = "target",
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir=data_dir, **kwargs)
        self.file, self.columns = file, ((smiles_column,), (target_column,))
        names = repr((smiles_column, target_column))  # the cache is of these columns
        self.cache_name = f"{dataset_name}-{zlib.crc32(names.encode()):08x}"

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, file: str = "molecules.csv"
    ) -> Path:
        """Find the csv file."""
        return find_dataset(data_dir, [file], Path.is_file, "data.file names it", SUBFOLDERS)

    def list_data_files(self) -> Sequence[Path]:
        """Return the csv file, and those of other splits beside it."""
        path = self.find_data(self.dataset_name, self.data_dir, self.file)
        return [*find_split_files(path, self.columns).values()]
