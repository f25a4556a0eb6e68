"""PCQM4M and PCQM4Mv2: the energy that lifts an electron, for 3.8 million molecules.

https://ogb.stanford.edu/docs/lsc/pcqm4mv2/, https://arxiv.org/abs/2103.09430
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from experiment_kit.data.local import locate
from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS
from attention_graph.data.base import TOPS, GraphData
from attention_graph.data.molecules import csv_records, labelled
from attention_graph.data.pickles import read_split
from attention_graph.data.source import Record, Source
from attention_graph.encodings import Fidelity

_FOLDERS = {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}
_FILES = ("raw/data.csv.gz", "split_dict.pt")


class PCQM(GraphData):
    """The gap between highest occupied and lowest empty orbital, in eV, by OGB's features.

    The labels of the official test molecules are hidden: what is tested on is the official
    validation part. Protocol `validation` holds a `share` of the training molecules back, by the
    seed, to choose the epoch; protocol `test` chooses it on the official validation part itself,
    as the papers do.

    Source: https://arxiv.org/abs/2103.09430

    >>> PCQM("pcqm4mv2").bond_rows
    1537
    """

    known = tuple(_FOLDERS)
    atom_rows, bond_rows = OGB_ATOM_ROWS, OGB_BOND_ROWS

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        batch_size: int = 1024,
        num_workers: int = 0,
        seed: int = 0,
        fidelity: Fidelity = "right",
        max_nodes: int = 512,
        workers: int = 0,
        share: float = 0.02,
    ) -> None:
        if not 0 < share < 1:
            raise ValueError(f"data.share, held out of training, must be in (0, 1), got {share}")
        super().__init__(
            name, data_dir, protocol, batch_size, num_workers, seed, fidelity, max_nodes, workers
        )
        self.share = share

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The release's folder; raises UserError where there is none."""
        return _locate(name, None)

    def split(self) -> dict[str, Dataset[Any]]:
        """The official parts, and what is held back of the training one."""
        folder = _locate(self.problem, self.data_dir)
        files = tuple(folder / file for file in _FILES)
        official = _official(files[1])
        records = partial(_records, files[0], official)
        total = sum(map(len, official))
        store = self.store(Source(self.problem, files, records, labelled, {}, total))
        train, valid = (store.among(rows) for rows in official)
        if len(train) < 2 or not len(valid):
            raise UserError(
                f"{folder} has {len(train)} training and {len(valid)} validation"
                " molecules; it takes two and one"
            )
        if self.protocol == "test":
            return {"train": train, "val": valid, "test": valid}
        count = min(max(round(self.share * len(train)), 1), len(train) - 1)
        rows = np.random.default_rng(self.seed).permutation(train.rows)
        return {
            "train": train.among(rows[count:]), "val": train.among(rows[:count]), "test": valid,
        }  # fmt: skip


def _locate(name: str, data_dir: str | None) -> Path:
    folder = _FOLDERS[name]
    hint = f"`python -m attention_graph.download {name}` fetches it"
    places = [folder, f"{name}/{folder}", f"dataset/{folder}"]
    return locate(data_dir, places, _is_release, hint, TOPS)


def _is_release(folder: Path) -> bool:
    return all((folder / file).is_file() for file in _FILES)


def _official(path: Path) -> tuple[np.ndarray, np.ndarray]:
    split = read_split(path)
    if missing := [name for name in ("train", "valid") if name not in split]:
        raise UserError(f"{path} has no part {' and no '.join(missing)}, but {', '.join(split)}")
    return split["train"], split["valid"]


def _records(path: Path, official: tuple[np.ndarray, np.ndarray]) -> Iterator[Record]:
    wanted = np.zeros(max(int(rows.max(initial=-1)) for rows in official) + 1, bool)
    for rows in official:
        wanted[rows] = True
    last = -1
    for record in csv_records(path, ("smiles",), ("homolumogap",)):
        last = record.row
        if last < len(wanted) and wanted[last]:
            yield record
    if last + 1 < len(wanted):
        raise UserError(f"{path} has {last + 1} rows, and its split names row {len(wanted)}")
