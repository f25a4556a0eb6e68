"""Own molecules: a csv file with a column of SMILES and a column of numbers."""

import zlib
from pathlib import Path
from typing import Any

from experiment_kit.data.datamodule import find_dataset

from attention_graph.data.base import SUBFOLDERS
from attention_graph.data.csv_molecules import CsvMolecules, MoleculeTable


class SmilesCSV(CsvMolecules):
    """Molecules of a csv `file` in DATA_DIR, by the names of its two columns."""

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
        self.file, self.columns = file, (smiles_column, target_column)

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, file: str = "molecules.csv"
    ) -> Path:
        """Find the csv file; raises UserError if there is none."""
        hint = "data.file names it"
        return find_dataset(data_dir, [file], Path.is_file, hint, SUBFOLDERS)

    def find_table(self) -> MoleculeTable:
        """Find the csv file; raises UserError if there is none."""
        path = self.find_data(self.dataset_name, self.data_dir, self.file)
        smiles, target = self.columns
        # the cache is of these columns
        name = f"{self.dataset_name}-{zlib.crc32(repr(self.columns).encode()):08x}"
        return MoleculeTable(path, name, (smiles,), (target,))

    def list_data_files(self) -> list[Path]:
        """Return the csv file."""
        return [self.find_data(self.dataset_name, self.data_dir, self.file)]
