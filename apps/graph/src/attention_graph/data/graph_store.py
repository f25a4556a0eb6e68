"""Encoded graphs in a few flat arrays on disk, read one by one.

The values of each attribute are concatenated; `ends` holds the end of each graph:

    columns["x"]  = [ graph 0 | graph 1      | graph 2 ]       ends["x"] = [2, 6, 8]
                      0     1   2 ...      5   6     7
"""

import bisect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Data

from attention_graph.chemistry.features import UnusableMolecule
from attention_graph.encodings.paths import ShortestPaths, Variant

_INTEGERS = (torch.int8, torch.int16, torch.int32)
_SPLIT_SEED = 0  # the same for every run: the test set must not change


class PackedGraphs(TypedDict):
    """Graphs of a chunk: the values of each attribute, and where each graph ends in them.

    Integers are as narrow as possible; `dtypes` are the original ones. `skipped` are those of the
    `rows` that gave no graph, with the reason.
    """

    columns: dict[str, Tensor]
    ends: dict[str, Tensor]
    dtypes: dict[str, str]
    rows: int
    skipped: list[tuple[int, str]]


def encode_graphs(
    rows: Iterable[tuple[int, Any]],
    featurize: Callable[[Any], Data],
    variant: Variant = "corrected",
    max_nodes: int = 512,
) -> PackedGraphs:
    """Make graphs of rows, with their shortest paths and their row numbers, and pack them."""
    add_paths = ShortestPaths(variant)
    graphs: list[Data] = []
    skipped: list[tuple[int, str]] = []
    for row, content in rows:
        try:
            graph = featurize(content)
        except UnusableMolecule as error:
            skipped.append((row, error.reason))
            continue
        if reason := _find_fault(graph, max_nodes):
            skipped.append((row, reason))
            continue
        graph = add_paths(graph)
        graph.row = torch.tensor([row])
        graphs.append(graph)
    columns, ends, dtypes = _pack_columns(graphs)
    count = len(graphs) + len(skipped)
    return PackedGraphs(columns=columns, ends=ends, dtypes=dtypes, rows=count, skipped=skipped)


def _find_fault(graph: Data, max_nodes: int) -> str:
    if not 0 < len(graph.x) <= max_nodes:
        return f"more than {max_nodes} atoms" if len(graph.x) else "no atoms"
    return "" if torch.isfinite(graph.y).all() else "no finite target"


def _pack_columns(
    graphs: Sequence[Data],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    columns, ends, dtypes = {}, {}, {}
    for name in sorted(graphs[0].keys()) if graphs else ():  # the order of a set varies
        values = [graph[name].movedim(_concat_axis(name), 0) for graph in graphs]
        joined = torch.cat(values)
        dtypes[name] = str(joined.dtype).removeprefix("torch.")
        columns[name] = _narrow_integers(joined)
        ends[name] = torch.tensor([len(value) for value in values]).cumsum(0)
    return columns, ends, dtypes


def _concat_axis(name: str) -> int:
    """Return the axis along which torch-geometric joins an attribute: edge_index has the last."""
    return Data().__cat_dim__(name, None)


def _narrow_integers(values: Tensor) -> Tensor:
    if values.is_floating_point() or not values.numel():
        return values
    low, high = (int(bound) for bound in values.aminmax())
    for dtype in _INTEGERS:
        info = torch.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.to(dtype)
    return values


def load_chunk(path: Path) -> PackedGraphs:
    """Map a chunk into memory."""
    return torch.load(path, mmap=True, weights_only=True)


class UnpackedGraphs:
    """The graphs of one chunk, built on demand."""

    def __init__(self, packed: PackedGraphs) -> None:
        # numpy's slices and casts take a third of the time of torch's
        self.columns = [
            (
                name,
                values.numpy(),
                packed["ends"][name].numpy(),  # mapped, not copied: there may be millions
                np.dtype(packed["dtypes"][name]),
                _concat_axis(name) != 0,
            )
            for name, values in packed["columns"].items()
        ]

    def __getitem__(self, index: int) -> Data:
        tensors: dict[str, Any] = {}
        for name, values, ends, dtype, is_transposed in self.columns:
            cut = values[ends[index - 1] if index else 0 : ends[index]]
            array = (cut.T if is_transposed else cut).astype(dtype, "C")
            tensors[name] = torch.from_numpy(array)
        graph = Data()
        graph._store._mapping.update(tensors)  # its setters would take as long as all of the above
        return graph


class GraphStore(Dataset[Data]):
    """The graphs in a folder of `encode_source`, or the `chosen` ones, by number.

    Chunks are mapped into memory on first use, also in a worker of a DataLoader.
    """

    def __init__(self, folder: Path, chosen: np.ndarray | None = None) -> None:
        self.folder = folder
        self.summary = json.loads((folder / "summary.json").read_text())
        counts = [chunk["graphs"] for chunk in self.summary["parts"]]
        self.starts = np.cumsum([0, *counts]).tolist()
        self.chosen = np.arange(self.starts[-1]) if chosen is None else chosen
        self._opened: dict[int, UnpackedGraphs] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}  # a worker maps the chunks itself

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Data:
        number = int(self.chosen[index])
        chunk = bisect.bisect_right(self.starts, number) - 1
        if chunk not in self._opened:
            path = self.folder / self.summary["parts"][chunk]["file"]
            self._opened[chunk] = UnpackedGraphs(load_chunk(path))
        return self._opened[chunk][number - self.starts[chunk]]

    def _load_column(self, name: str) -> np.ndarray:
        chunks = (load_chunk(self.folder / part["file"]) for part in self.summary["parts"])
        values = [chunk["columns"][name].numpy() for chunk in chunks if name in chunk["columns"]]
        return np.concatenate(values)[self.chosen]

    @cached_property
    def rows(self) -> np.ndarray:
        """The row (S,) of each graph in its source."""
        return self._load_column("row").astype(np.int64)

    @cached_property
    def targets(self) -> np.ndarray:
        """The target (S,) of each graph."""
        return self._load_column("y")

    def select_rows(self, rows: np.ndarray) -> "GraphStore":
        """Return the graphs of these rows, in the order of the source."""
        return GraphStore(self.folder, self.chosen[np.isin(self.rows, rows)])

    def describe_skipped(self) -> str:
        """Say in a sentence how many molecules were skipped and why; empty if none was."""
        if not (skipped := self.summary["skipped"]):
            return ""
        count = sum(entry["count"] for entry in skipped.values())
        of = f"{count} of {self.summary['rows']} molecules of {self.summary['name']}"
        return f"note: {of} are skipped: {format_skipped(skipped)}"


def format_skipped(skipped: Mapping[str, Any]) -> str:
    """List the reasons and the first rows of skipped molecules; rows count from 1."""
    reasons = []
    for reason, entry in skipped.items():
        first = ", ".join(str(row + 1) for row in entry["first"])
        more = ", ..." if entry["count"] > len(entry["first"]) else ""
        rows = "row" if entry["count"] == 1 else "rows"
        reasons.append(f"{entry['count']} with {reason} ({rows} {first}{more})")
    return ", ".join(reasons)


def split_by_tenths(store: GraphStore, others: Sequence[str]) -> dict[str, GraphStore]:
    """Split the rows of a source: a tenth for each of the others, and the rest for training.

    Rows are shuffled, not graphs, so that a skipped one moves no other.
    """
    count = store.summary["rows"]
    order = np.random.default_rng(_SPLIT_SEED).permutation(count)
    ends = [count * tenth // 10 for tenth in range(10 - len(others), 10)]
    parts = zip(("train", *others), np.split(order, ends), strict=True)
    splits = {split: store.select_rows(rows) for split, rows in parts}
    if not all(map(len, splits.values())):
        text = f"{store.summary['name']} has {len(store)} molecules"
        raise UserError(f"{text}: too few for a tenth to validate and one to test")
    return splits
