"""Graphs that were pre-processed, read from disk one by one."""

import bisect
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch.utils.data import Dataset
from torch_geometric.data import Data

from attention_graph.data.packing import Packed, Unpacked
from attention_graph.data.prepare import told

_REREAD = ("rows", "targets")  # what a worker does not ask for
_SPLIT = 0  # the seed of the split, the same for every run: the test set must not change


class Store(Dataset[Data]):
    """The graphs in a folder of `prepare`, or those `chosen` of them, by number.

    Parts are mapped into memory where they are first needed, also in a worker of a DataLoader.
    `rows` are the graphs' rows in their source: what was skipped shifts none. Raises UserError
    for a part that cannot be read.
    """

    def __init__(self, folder: Path, chosen: np.ndarray | None = None) -> None:
        self.folder = folder
        self.summary = json.loads((folder / "summary.json").read_text())
        counts = [part["graphs"] for part in self.summary["parts"]]
        self.starts = np.cumsum([0, *counts]).tolist()
        self.chosen = np.arange(self.starts[-1]) if chosen is None else chosen
        self._open: dict[int, Unpacked] = {}

    def __getstate__(self) -> dict[str, Any]:
        small = {name: value for name, value in vars(self).items() if name not in _REREAD}
        return {**small, "_open": {}}

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Data:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = int(self.chosen[index])
        part = bisect.bisect_right(self.starts, place) - 1
        if part not in self._open:
            self._open[part] = Unpacked(self._load(part))
        return self._open[part][place - self.starts[part]]

    def _load(self, part: int) -> Packed:
        path = self.folder / self.summary["parts"][part]["file"]
        try:
            return torch.load(path, mmap=True, weights_only=True)
        except Exception as error:  # whatever a damaged archive makes the reader raise
            raise UserError(f"{path} cannot be read: delete it, and it is made anew") from error

    def _column(self, name: str) -> np.ndarray:
        parts = (self._load(number) for number in range(len(self.summary["parts"])))
        values = [part["columns"][name].numpy() for part in parts if name in part["columns"]]
        return np.concatenate(values)[self.chosen]

    @cached_property
    def rows(self) -> np.ndarray:
        """The row (S,) of each graph in its source."""
        return self._column("row").astype(np.int64)

    @cached_property
    def targets(self) -> np.ndarray:
        """The target (S,) of each graph."""
        return self._column("y")

    def among(self, rows: np.ndarray) -> "Store":
        """The graphs that come from any of these rows, in the order of the source."""
        return Store(self.folder, self.chosen[np.isin(self.rows, rows)])

    def note(self) -> str:
        """What was skipped and why, in a sentence; empty where nothing was."""
        if not (skipped := self.summary["skipped"]):
            return ""
        count = sum(entry["count"] for entry in skipped.values())
        of = f"{count} of {self.summary['rows']} molecules of {self.summary['name']}"
        return f"note: {of} are skipped: {told(skipped)}"


def tenths(store: Store) -> dict[str, Store]:
    """Eight tenths of a source's rows to train, one to choose the epoch, one to test.

    Rows, not graphs, are shuffled, so that one that is skipped moves no other one. Raises
    UserError where a part is empty.
    """
    count = store.summary["rows"]
    order = np.random.default_rng(_SPLIT).permutation(count)
    borders = {"train": (0, 8), "val": (8, 9), "test": (9, 10)}
    parts = {
        part: store.among(order[count * begin // 10 : count * end // 10])
        for part, (begin, end) in borders.items()
    }
    if empty := [part for part in parts if not len(parts[part])]:
        text = f"{store.summary['name']} has {len(store)} molecules"
        raise UserError(
            f"{text}: too few for a tenth to choose the epoch and one to test"
            f" (no {' and no '.join(empty)} part)"
        )
    return parts
