"""Molecules that need no file: assembled here, with ZINC's features and ZINC's target."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from attention_graph.chemistry.features import ZINC_ROWS
from attention_graph.chemistry.invent import LINKERS, RINGS, SUBSTITUENTS, invent
from attention_graph.chemistry.penalised import scored_molecule
from attention_graph.data.base import GraphData
from attention_graph.data.prepare import CACHE
from attention_graph.data.source import Record, Source
from attention_graph.data.store import tenths
from attention_graph.encodings import Fidelity

_SEED = 0  # of the molecules, the same for every run


class Invented(GraphData):
    """Molecules joined from fragments, and their penalised logP; no number is worth a mention.

    80 % are trained on, 10 % choose the epoch and 10 % test, the same for every run.

    >>> Invented("invented").atom_rows
    64
    """

    known = ("invented",)
    atom_rows = bond_rows = ZINC_ROWS

    def __init__(
        self,
        name: str = "invented",
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        fidelity: Fidelity = "right",
        max_nodes: int = 512,
        workers: int = 0,
        count: int = 3000,
    ) -> None:
        if count < 10:
            raise ValueError(f"data.count must be at least 10, got {count}")
        super().__init__(
            name, data_dir, protocol, batch_size, num_workers, seed, fidelity, max_nodes, workers
        )
        self.count = count

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where the molecules will be; they are made where they are not there."""
        return CACHE

    def split(self) -> dict[str, Dataset[Any]]:
        """Eight tenths, one and one."""
        options = {"count": self.count, "seed": _SEED, "of": [RINGS, LINKERS, SUBSTITUENTS]}
        records = partial(_records, self.count)
        source = Source(self.problem, (), records, scored_molecule, options, self.count)
        return self.scored(tenths(self.store(source)))


def _records(count: int) -> Iterator[Record]:
    for row, smiles in enumerate(invent(count, _SEED)):
        yield Record(row, smiles, len(smiles))
