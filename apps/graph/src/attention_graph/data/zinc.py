"""ZINC: penalized logP of drug-like molecules, 12 thousand of them or all 250.

https://arxiv.org/abs/2003.00982; torch-geometric reads only pickles, and runs any code in them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.errors import UserError, convert_user_errors
from torch.utils.data import Dataset
from torch_geometric.data import Data

from attention_graph.chemistry import features
from attention_graph.data.base import SUBFOLDERS, GraphData
from attention_graph.data.graph_cache import MoleculeSource, Record
from attention_graph.data.safe_pickle import load_pickle

_SPLITS = ("train", "val", "test")
_PICKLES = tuple(f"{split}.pickle" for split in _SPLITS)
_INDICES = tuple(f"{split}.index" for split in _SPLITS)
# The files that each layout needs in a folder, the official ones first
_LAYOUTS = {
    "zinc": {"pickles": _PICKLES + _INDICES, "arrays": ("zinc12k.npz",)},
    "zinc_full": {"pickles": _PICKLES},
}
_FOLDERS = ("ZINC/molecules", "ZINC/raw", "molecules", "zinc/molecules", "zinc", "")
_HINT = "`allpass data zinc` fetches it"
_COLUMNS = ("n", "m", "atom", "bond", "y")  # the columns in zinc12k.npz
_FIELDS = ("atom_type", "bond_type", "logP_SA_cycle_normalized")


class Zinc(GraphData):
    """ZINC with one feature of an atom and of a bond, on its official split.

    `zinc` is the subset of 10,000 / 1,000 / 1,000 molecules, `zinc_full` has 220,011 / 24,445 /
    5,000. They are read from the pickles of benchmarking-gnns with their index files, in its folder
    `molecules` or in torch-geometric's. Without these the subset is read from `zinc/zinc12k.npz`,
    which has the official validation and test molecules, but other training molecules, from the
    same pool; a note on standard error says so.
    """

    DATASETS = tuple(_LAYOUTS)
    atom_rows = bond_rows = features.ZINC_ROWS
    featurize = staticmethod(features.featurize_zinc)

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the folder of the files, the official ones first."""
        return find_dataset(
            data_dir, _FOLDERS, lambda p: _find_layout(p, dataset_name) != "", _HINT, SUBFOLDERS
        )

    def list_data_files(self) -> Sequence[Path]:
        """List the files of the layout that is read."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        layout = _find_layout(folder, self.dataset_name)
        return [folder / file for file in _LAYOUTS[self.dataset_name][layout]]

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Read the official splits, or as much of training as there is."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        layout = _find_layout(folder, self.dataset_name)
        if layout == "arrays":
            text = "the official validation and test molecules, and a substitute of the training"
            print(f"note: {folder} has {text} ones, drawn from the same pool", file=sys.stderr)
        return {
            split: self.open_store(self._describe_source(folder, layout, split))
            for split in _SPLITS
        }

    def _describe_source(self, folder: Path, layout: str, split: str) -> MoleculeSource:
        name, is_subset = f"{self.dataset_name}-{split}", self.dataset_name == "zinc"
        if layout == "arrays":
            path = folder / "zinc12k.npz"
            records = partial(read_arrays, path, split)
            return MoleculeSource(name, (path,), records, featurize_arrays, {"part": split})
        files = [folder / f"{split}.pickle"]
        files += [folder / f"{split}.index"] if is_subset else []
        return MoleculeSource(name, tuple(files), partial(read_pickled, *files), featurize_arrays)


def _find_layout(folder: Path, dataset_name: str) -> str:
    layouts = _LAYOUTS[dataset_name].items()
    found = (name for name, files in layouts if all((folder / file).is_file() for file in files))
    return next(found, "")


class MoleculeArrays(NamedTuple):
    """Atom types (N,), bonds (M, 3) as begin, end and type, and the target."""

    atoms: np.ndarray
    bonds: np.ndarray
    target: float


def featurize_arrays(content: MoleculeArrays) -> Data:
    """Make the graph of a molecule's arrays, with y (1,)."""
    graph = features.build_zinc_graph(content.atoms, content.bonds)
    graph.y = torch.tensor([content.target], dtype=torch.float32)
    return graph


def read_pickled(path: Path, index: Path | None = None) -> Iterator[Record]:
    """Yield the molecules of benchmarking-gnns, all of a file or those that an index file names.

    A molecule is a dict with the tensors atom_type (N,), bond_type (N, N) and
    logP_SA_cycle_normalized (1,).

    Source: https://github.com/graphdeeplearning/benchmarking-gnns
    """
    molecules = load_pickle(path)
    rows = range(len(molecules)) if index is None else read_index(index)
    text = f"{path} holds no molecules with {', '.join(_FIELDS)} of one size: "
    for row in rows:
        with convert_user_errors(LookupError, TypeError, ValueError, prefix=text):
            atoms, dense, target = (np.asarray(molecules[row][field]) for field in _FIELDS)
            square = dense.reshape(len(atoms), len(atoms))
            square = np.triu(np.maximum(square, square.T), 1)  # either triangle may be empty
            begin, end = np.nonzero(square)
            bonds = np.stack([begin, end, square[begin, end]], 1).astype(np.int32)
            content = MoleculeArrays(atoms.astype(np.int32), bonds, float(target.reshape(())))
        yield Record(row, content, len(atoms))


def read_index(path: Path) -> list[int]:
    """Read row numbers, separated by commas; raises UserError for anything else."""
    with convert_user_errors(ValueError, prefix=f"{path} must hold numbers with commas between: "):
        return [int(cell) for cell in path.read_text("utf-8-sig").replace(",", " ").split()]


def read_arrays(path: Path, split: str) -> Iterator[Record]:
    """Yield the molecules of zinc12k.npz: sizes, atoms and bonds of all, concatenated."""
    kinds = OSError, KeyError, ValueError, BadZipFile
    with convert_user_errors(*kinds, prefix=f"{path} cannot be read: "), np.load(path) as file:
        n, m, atom, bond, y = (file[f"{split}_{part}"] for part in _COLUMNS)
        types = tuple(map(str, file["atom_types"]))
    if types != features.ZINC_ATOMS:
        raise UserError(f"{path}: atom_types are not the {len(features.ZINC_ATOMS)} of ZINC")
    atoms, bonds = (
        np.split(values, np.cumsum(sizes, dtype=np.int64)[:-1])
        for values, sizes in ((atom, n), (bond, m))
    )
    for row, content in enumerate(zip(atoms, bonds, y.tolist(), strict=True)):
        yield Record(row, MoleculeArrays(*content), len(content[0]))
