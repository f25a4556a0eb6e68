"""PCQM4M and PCQM4Mv2: the gap between two orbitals, for 3.8 million molecules.

https://ogb.stanford.edu/docs/lsc/pcqm4mv2/, https://arxiv.org/abs/2103.09430
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.errors import UserError, convert_user_errors
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import SUBFOLDERS, GraphData
from attention_graph.data.graph_cache import MoleculeSource, Record
from attention_graph.data.smiles_files import featurize_row, read_csv_rows

_FOLDERS = {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}
_FILES = ("raw/data.csv.gz", "split_dict.pt")


class PCQM(GraphData):
    """The gap between highest occupied and lowest empty orbital, in eV, by OGB's features.

    The labels of the official test molecules are hidden: the test split here is the official
    validation split. Protocol `validation` holds out a `val_fraction` of the training molecules,
    by the seed, to choose the epoch; protocol `test` chooses it on the official validation split,
    as the papers do.
    """

    DATASETS = tuple(_FOLDERS)
    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

    def __init__(
        self, dataset_name: str, val_fraction: float = 0.02, batch_size: int = 1024, **kwargs: Any
    ) -> None:
        super().__init__(dataset_name, batch_size=batch_size, val_fraction=val_fraction, **kwargs)

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the folder of the release; raises UserError if there is none."""
        folder = _FOLDERS[dataset_name]
        hint = f"`allpass data {dataset_name}` fetches it"
        paths = [folder, f"{dataset_name}/{folder}", f"dataset/{folder}"]
        return find_dataset(data_dir, paths, lambda x: (x / _FILES[1]).is_file(), hint, SUBFOLDERS)

    def list_data_files(self) -> Sequence[Path]:
        """List the two files of the release."""
        return [self.find_data(self.dataset_name, self.data_dir) / file for file in _FILES]

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Read the official splits, and hold out a part of the training split."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        files = tuple(folder / file for file in _FILES)
        split = _load_row_numbers(files[1])
        if not {"train", "valid"} <= split.keys():
            raise UserError(f"{files[1]} has the parts {', '.join(split)}, not train and valid")
        official = split["train"], split["valid"]
        records = partial(_read_records, files[0], official)
        total = sum(map(len, official))
        source = MoleculeSource(self.dataset_name, files, records, featurize_row, {}, total)
        store = self.open_store(source)
        train, valid = (store.select_rows(rows) for rows in official)
        if self.protocol == "test":
            return {"train": train, "val": valid, "test": valid}
        count = min(max(round(self.val_fraction * len(train)), 1), len(train) - 1)
        rows = np.random.default_rng(self.seed).permutation(train.rows)
        kept, held_out = train.select_rows(rows[count:]), train.select_rows(rows[:count])
        return {"train": kept, "val": held_out, "test": valid}


def _load_row_numbers(path: Path) -> dict[str, np.ndarray]:
    """Load the arrays of OGB's split_dict.pt; raises UserError for a file with other content."""
    rebuild: Any = np.empty(0).__reduce__()[0]
    arrays: list[Any] = [np.ndarray, np.dtype, np.dtypes.Int64DType, np.dtypes.Int32DType]
    # numpy 2 moved the function, and files of both versions exist
    arrays += [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    kinds = pickle.UnpicklingError, RuntimeError, EOFError
    text = f"{path} cannot be read as arrays of row numbers: "
    with convert_user_errors(*kinds, prefix=text), torch.serialization.safe_globals(arrays):
        found = torch.load(path, weights_only=True)
    return {name: np.asarray(rows, np.int64).ravel() for name, rows in found.items()}


def _read_records(path: Path, official: tuple[np.ndarray, np.ndarray]) -> Iterator[Record]:
    chosen = np.concatenate(official)
    wanted = np.zeros(chosen.max() + 1, bool)
    wanted[chosen] = True
    row = -1
    for row, record in enumerate(read_csv_rows(path, ("smiles",), ("homolumogap",))):
        if row < len(wanted) and wanted[row]:
            yield record
    if row + 1 < len(wanted):
        raise UserError(f"{path} has {row + 1} rows, and its split names row {len(wanted)}")
