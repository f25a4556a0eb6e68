"""What the data sets of this app have in common: pre-processed graphs, in three parts."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

from experiment_kit.data.parts import PartsData
from torch.utils.data import Dataset

from attention_graph.data.prepare import prepare
from attention_graph.data.source import Options, Source
from attention_graph.data.store import Store
from attention_graph.encodings import Fidelity, collate

TOPS = ("", "graph/")  # folders of DATA_DIR
_LARGEST = 16383  # nodes that the encodings can count


class GraphData(PartsData):
    """Molecules as graphs with their shortest paths, and a number that each of them has.

    They are encoded once, into `runs/data/graph`; `workers` processes do that, 0 is this one.
    What cannot be used is left out and counted on standard error: an invalid SMILES, a target
    that is missing, no atoms or more than `max_nodes`. A batch is an `encodings.Batch`.

    Protocol `validation` chooses the epoch on the validation part and scores the test part once;
    protocol `test` chooses it on the test part itself, so that the result is an upper bound.

    `atom_rows` and `bond_rows`, the sizes of the model's tables, and `target_mean` and
    `target_std` are linked to the model's arguments of the same names.

    Raises ValueError for an argument out of its range.
    """

    known: ClassVar[tuple[str, ...]] = ()
    atom_rows: int
    bond_rows: int

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        fidelity: Fidelity = "right",
        max_nodes: int = 512,
        workers: int = 0,
    ) -> None:
        super().__init__()
        if name not in self.known:
            raise ValueError(f"data.name must be one of {', '.join(self.known)}, got {name!r}")
        _one_of("protocol", protocol, ("validation", "test"))
        _one_of("fidelity", fidelity, get_args(Fidelity))
        least = {"batch_size": (batch_size, 1), "max_nodes": (max_nodes, 1)}
        least |= {"num_workers": (num_workers, 0), "workers": (workers, 0)}
        _at_least(least)
        if max_nodes > _LARGEST:
            raise ValueError(f"data.max_nodes must be at most {_LARGEST}, got {max_nodes}")
        self.save_hyperparameters()
        self.problem, self.data_dir, self.protocol = name, data_dir, protocol
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.encoding, self.workers = Options(fidelity, max_nodes), workers
        self.parts: dict[str, Dataset[Any]] = {}

    @property
    def collate(self) -> Callable[[list[Any]], Any]:
        """Graphs become one dense batch."""
        return collate

    @property
    def target_mean(self) -> float:
        """What the model adds to its output."""
        return 0.0

    @property
    def target_std(self) -> float:
        """What the model multiplies its output by, first."""
        return 1.0

    def split(self) -> dict[str, Dataset[Any]]:
        """The parts train, val and test; raises UserError where the files are not right."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Make the parts, once."""
        if not self.parts:
            self.parts = self.split()

    def store(self, source: Source) -> Store:
        """The graphs of a source, encoded now where they were not before."""
        store = Store(prepare(source, self.encoding, self.workers))
        if note := store.note():
            print(note, file=sys.stderr)
        return store

    def scored(self, parts: Mapping[str, Dataset[Any]]) -> dict[str, Dataset[Any]]:
        """The parts, with the one that chooses the epoch as the protocol says."""
        chosen = parts["test"] if self.protocol == "test" else parts["val"]
        return {**parts, "val": chosen}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"data.{name} must be {' or '.join(allowed)}, got {value!r}")


def _at_least(numbers: Mapping[str, tuple[int, int]]) -> None:
    for name, (value, low) in numbers.items():
        if value < low:
            raise ValueError(f"data.{name} must be at least {low}, got {value}")
