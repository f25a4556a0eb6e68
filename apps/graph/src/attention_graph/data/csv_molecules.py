"""Molecules of a csv file: a column of SMILES, and a column of numbers."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import GraphData
from attention_graph.data.graph_cache import MoleculeSource
from attention_graph.data.graph_store import GraphStore, split_by_tenths
from attention_graph.data.smiles_files import featurize_row, read_csv_rows


class CsvMolecules(GraphData):
    """Molecules of a csv file, and the number that a column has for each; `stores` is abstract.

    The features are OGB's. 80 % of the molecules are for training, 10 % for validation and 10 % for
    testing, by a shuffle that is the same for every run. The model scales its output by
    `target_mean` and `target_std`, those of the training split.
    """

    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS
    stores: Mapping[str, GraphStore]

    def read_stores(
        self, name: str, path: Path, smiles: Sequence[str], target: Sequence[str]
    ) -> dict[str, GraphStore]:
        """Read the columns of a file through the cache of this name, and split the molecules."""
        records = partial(read_csv_rows, path, smiles, target)
        source = MoleculeSource(name, (path,), records, featurize_row)
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
