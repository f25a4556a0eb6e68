"""Own molecules: a csv file with a column of SMILES and a column of numbers."""

import zlib
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from experiment_kit.data.paths import find_dataset
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import SUBFOLDERS, GraphData
from attention_graph.data.graph_cache import MoleculeSource
from attention_graph.data.graph_store import GraphStore, split_by_tenths
from attention_graph.data.smiles_files import featurize_row, read_csv_rows


class SmilesCSV(GraphData):
    """Molecules of a csv `file` in DATA_DIR, and the number that a column has for each.

    The features are OGB's. 80 % of the molecules are for training, 10 % for validation and 10 % for
    testing, by a shuffle that is the same for every run. The model scales its output by
    `target_mean` and `target_std`, those of the training split.
    """

    DATASETS = ("smiles_csv",)
    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

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
        self.file, self.columns = file, (smiles_column, target_column)

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, file: str = "molecules.csv"
    ) -> Path:
        """Find the csv file; raises UserError if there is none."""
        hint = "data.file names it"
        return find_dataset(data_dir, [file], Path.is_file, hint, SUBFOLDERS)

    @cached_property
    def stores(self) -> dict[str, GraphStore]:
        """The three splits, the same in both protocols."""
        path = self.find_data(self.dataset_name, self.data_dir, self.file)
        smiles, target = self.columns
        records = partial(read_csv_rows, path, (smiles,), (target,))
        # the cache is of these columns
        name = f"{self.dataset_name}-{zlib.crc32(repr(self.columns).encode()):08x}"
        source = MoleculeSource(name, (path,), records, featurize_row)
        return split_by_tenths(self.open_store(source))

    def list_data_files(self) -> list[Path]:
        """Return the csv file."""
        return [self.find_data(self.dataset_name, self.data_dir, self.file)]

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
