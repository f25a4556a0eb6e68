"""MoleculeNet's small regression sets: measured properties of a few hundred or thousand molecules.

https://arxiv.org/abs/1703.00564
"""

from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiment_kit.data.local import locate
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import TOPS, GraphData
from attention_graph.data.molecules import csv_records, labelled
from attention_graph.data.source import Source
from attention_graph.data.store import Store, tenths

_HINT = "`python -m attention_graph.download esol freesolv lipophilicity` fetches all three"


class _Table(NamedTuple):
    """The names of a file, and of its target column; DeepChem's own come first."""

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

    log10 of mol/l, kcal/mol, logD at pH 7.4. The features are OGB's. 80 % of the molecules are
    trained on, 10 % choose the epoch and 10 % test, by a shuffle of the file's rows that is the
    same for every run, since none is official. `target_mean` and `target_std` are those of the
    training part.

    Source: https://arxiv.org/abs/1703.00564

    >>> MoleculeNet("esol").atom_rows
    4609
    """

    known = tuple(_TABLES)
    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The csv file; raises UserError where there is none."""
        return _locate(name, None)

    @cached_property
    def stores(self) -> dict[str, Store]:
        """The three parts, whatever the protocol."""
        path, table = _locate(self.problem, self.data_dir), _TABLES[self.problem]
        records = partial(csv_records, path, ("smiles",), table.target)
        return tenths(self.store(Source(self.problem, (path,), records, labelled)))

    @property
    def target_mean(self) -> float:
        """Of the training part."""
        return float(self.stores["train"].targets.mean(dtype=np.float64))

    @property
    def target_std(self) -> float:
        """Of the training part; 1 where all targets are the same."""
        return float(self.stores["train"].targets.std(dtype=np.float64)) or 1.0

    def split(self) -> dict[str, Dataset[Any]]:
        """Eight tenths, one and one."""
        return self.scored(self.stores)


def _locate(name: str, data_dir: str | None) -> Path:
    places = [f"{folder}{file}" for folder in ("moleculenet/", "") for file in _TABLES[name].files]
    return locate(data_dir, places, Path.is_file, _HINT, TOPS)
