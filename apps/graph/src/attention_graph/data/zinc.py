"""ZINC: penalised logP of drug-like molecules, 12 thousand of them or all 250.

https://arxiv.org/abs/2003.00982
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from experiment_kit.data.local import locate
from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_graph.chemistry.features import ZINC_ROWS
from attention_graph.chemistry.penalised import scored_molecule
from attention_graph.data import zinc_files as files
from attention_graph.data.base import TOPS, GraphData
from attention_graph.data.source import Source

_PARTS: tuple[files.Part, ...] = ("train", "val", "test")
_PICKLES = tuple(f"{part}.pickle" for part in _PARTS)
_INDICES = tuple(f"{part}.index" for part in _PARTS)
_SMILES = ("zinc250k.smi", "zincfull_valid.txt", "zincfull_test.txt")
# What each layout needs of a folder, the official ones first
_LAYOUTS = {
    "zinc": {
        "pickles": _PICKLES + _INDICES,
        "arrays": ("zinc12k.npz",),
        "smiles": (*_SMILES, "zinc12k_val.index", "zinc12k_test.index"),
    },
    "zinc_full": {"pickles": _PICKLES, "smiles": _SMILES},
}
_FOLDERS = ("ZINC/molecules", "ZINC/raw", "molecules", "zinc/molecules", "zinc", "")
_HINT = "`python -m attention_graph.download zinc` fetches it"


class Zinc(GraphData):
    """ZINC with one feature of an atom and of a bond, on its official split.

    `zinc` is the subset of 10,000 / 1,000 / 1,000 molecules, `zinc_full` has 220,011 / 24,445 /
    5,000, and one less to train on where SMILES are read. Read are, in this order: the pickles of
    benchmarking-gnns with their index files, in its folder `molecules` or in torch-geometric's;
    `zinc/zinc12k.npz`; SMILES, of which the targets are computed. The last two have the official
    validation and test molecules, but of the subset's training ones another draw from the same
    pool, which is said on standard error.

    Source: https://arxiv.org/abs/2003.00982

    >>> Zinc("zinc").atom_rows
    64
    """

    known = tuple(_LAYOUTS)
    atom_rows = bond_rows = ZINC_ROWS

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the files; raises UserError where there is none."""
        return _locate(name, None)

    def split(self) -> dict[str, Dataset[Any]]:
        """The official parts; of training, what there is."""
        folder = _locate(self.problem, self.data_dir)
        layout = _layout(folder, self.problem)
        if self.problem == "zinc" and layout != "pickles":
            text = "the official validation and test molecules, and a substitute of the training"
            print(f"note: {folder} has {text} ones, drawn from the same pool", file=sys.stderr)
        parts: dict[str, Dataset[Any]] = {}
        for part in _PARTS:
            parts[part] = self.store(self._source(folder, str(layout), part))
        return self.scored(parts)

    def _source(self, folder: Path, layout: str, part: files.Part) -> Source:
        name = f"{self.problem}-{part}"
        if layout == "pickles":
            used = [folder / f"{part}.pickle"]
            used += [folder / f"{part}.index"] if self.problem == "zinc" else []
            return Source(name, tuple(used), partial(files.pickled, *used), files.from_arrays)
        if layout == "arrays":
            path = folder / "zinc12k.npz"
            records = partial(files.arrays, path, part)
            return Source(name, (path,), records, files.from_arrays, {"part": part})
        small = self.problem == "zinc"
        lists = tuple(folder / file for file in _LAYOUTS[self.problem]["smiles"])
        records = partial(files.smiles, folder, part, small)
        return Source(name, lists, records, scored_molecule, {"part": part, "small": small})


def _layout(folder: Path, name: str) -> str | None:
    for layout, needed in _LAYOUTS[name].items():
        if all((folder / file).is_file() for file in needed):
            return layout
    return None


def _locate(name: str, data_dir: str | None) -> Path:
    # the official files in any folder come before a substitute in another
    try:
        return locate(data_dir, _FOLDERS, lambda at: _layout(at, name) == "pickles", _HINT, TOPS)
    except UserError:
        return locate(data_dir, _FOLDERS, lambda at: _layout(at, name) is not None, _HINT, TOPS)
