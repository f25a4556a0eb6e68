"""Molecules of a csv file: a column of SMILES, and a column of numbers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import GraphData
from attention_graph.data.graph_cache import MoleculeSource
from attention_graph.data.graph_store import GraphStore, split_by_tenths
from attention_graph.data.smiles_files import featurize_row, read_csv_rows


class MoleculeTable(NamedTuple):
    """A csv file, the name of its cache, and the names that its two columns may have."""

    path: Path
    cache: str
    smiles: Sequence[str]
    target: Sequence[str]


class CsvMolecules(GraphData):
    """Molecules of a csv file, and the number that a column has for each.

    The features are OGB's. 80 % of the molecules are for training, 10 % for validation and 10 % for
    testing, by a shuffle that is the same for every run. The model scales its output by
    `target_mean` and `target_std`, those of the training split.
    """

    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

    @abstractmethod
    def find_table(self) -> MoleculeTable:
        """Find the file; raises UserError if there is none."""

    @cached_property
    def stores(self) -> dict[str, GraphStore]:
        """The three splits, the same in both protocols."""
        table = self.find_table()
        records = partial(read_csv_rows, table.path, table.smiles, table.target)
        source = MoleculeSource(table.cache, (table.path,), records, featurize_row)
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
