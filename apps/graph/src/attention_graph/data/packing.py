"""Many graphs side by side in a few arrays, and one of them again."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from attention_graph.chemistry.features import UnusableMolecule
from attention_graph.encodings import Fidelity, ShortestPaths

_INTEGERS = (torch.int8, torch.int16, torch.int32)


class Packed(TypedDict):
    """Graphs of a chunk: each attribute's values one after the other, and where each graph ends.

    Integers are as narrow as they can be; `dtypes` are what they were. `skipped` are the rows,
    of all the `rows`, that gave no graph, and why.
    """

    columns: dict[str, Tensor]
    ends: dict[str, Tensor]
    dtypes: dict[str, str]
    rows: int
    skipped: list[tuple[int, str]]


def encode(
    rows: Iterable[tuple[int, Any]],
    make: Callable[[Any], Data],
    fidelity: Fidelity = "right",
    max_nodes: int = 512,
) -> Packed:
    """The graphs that `make` makes of rows, with their shortest paths and their row numbers.

    >>> one = Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    >>> one.y = torch.tensor([0.5])
    >>> packed = encode([(7, one)], lambda graph: graph)
    >>> graphs_in(packed), packed["columns"]["row"].tolist(), packed["skipped"]
    (1, [7], [])
    """
    transform = ShortestPaths(fidelity)
    graphs: list[Data] = []
    skipped: list[tuple[int, str]] = []
    count = 0
    for row, content in rows:
        count += 1
        try:
            graph = make(content)
            _check(graph, max_nodes)
        except UnusableMolecule as error:
            skipped.append((row, error.reason))
            continue
        graph = transform(graph)
        graph.row = torch.tensor([row])
        graphs.append(graph)
    columns, ends, dtypes = _columns(graphs)
    return Packed(columns=columns, ends=ends, dtypes=dtypes, rows=count, skipped=skipped)


def _check(graph: Data, max_nodes: int) -> None:
    atoms = len(graph.x)
    if not atoms:
        raise UnusableMolecule("the molecule is empty", "no atoms")
    if atoms > max_nodes:
        raise UnusableMolecule(f"{atoms} atoms", f"more than {max_nodes} atoms")
    if not torch.isfinite(graph.y).all():
        raise UnusableMolecule("the target is missing", "no finite target")


def _columns(
    graphs: Sequence[Data],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    columns, ends, dtypes = {}, {}, {}
    for name in sorted(graphs[0].keys()) if graphs else ():  # a set's order is another each time
        values = [graph[name].movedim(_axis(name), 0) for graph in graphs]
        joined = torch.cat(values)
        dtypes[name] = str(joined.dtype).removeprefix("torch.")
        columns[name] = _narrow(joined)
        ends[name] = torch.tensor([len(value) for value in values]).cumsum(0)
    return columns, ends, dtypes


def _axis(name: str) -> int:
    """Along which torch-geometric joins an attribute: the last one of edge_index."""
    return Data().__cat_dim__(name, None)


def _narrow(values: Tensor) -> Tensor:
    if values.is_floating_point() or not values.numel():
        return values
    low, high = (int(bound) for bound in values.aminmax())
    for dtype in _INTEGERS:
        info = torch.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.to(dtype)
    return values


def graphs_in(packed: Packed) -> int:
    """How many graphs there are."""
    return len(packed["ends"].get("row", ()))


class Unpacked:
    """The graphs of one part, made as they are asked for.

    >>> one = Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    >>> one.y = torch.tensor([0.5])
    >>> Unpacked(encode([(7, one)], lambda graph: graph))[0].y.tolist()
    [0.5]
    """

    def __init__(self, packed: Packed) -> None:
        # numpy's slices and casts take a third of the time of torch's
        self.columns = [
            (
                name,
                values.numpy(),
                packed["ends"][name].numpy(),  # as they lie: millions of graphs have many
                np.dtype(packed["dtypes"][name]),
                _axis(name) != 0,
            )
            for name, values in packed["columns"].items()
        ]

    def __getitem__(self, index: int) -> Data:
        tensors: dict[str, Any] = {}
        for name, values, ends, dtype, turned in self.columns:
            cut = values[ends[index - 1] if index else 0 : ends[index]]
            tensors[name] = torch.from_numpy((cut.T if turned else cut).astype(dtype, "C"))
        graph = Data()
        graph._store._mapping.update(tensors)  # its setters would take as long as all of the above
        return graph
