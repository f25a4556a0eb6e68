"""Graphs of different sizes as one dense batch, with the steps of all their paths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from attention_graph.encodings.paths import UNREACHABLE

SHIFT = 512  # ids of a column of features begin this much after those of the one before
_NEEDED = (
    "x", "edge_index", "edge_attr", "y",
    "hops", "step_pair", "step_parent", "step_bond", "step_hop", "step_weight",
)  # fmt: skip


class Batch(NamedTuple):
    """B graphs, padded to the N nodes of the largest one.

    ``atoms`` (B, N, F), ids of features, and ``mask`` (B, N), True at nodes; ``degrees``
    (B, N, 2) in and out; ``hops`` (B, N, N). Padding is 0, and -1 in ``hops``.

    ``bonds`` (U + 1, G): the distinct ids of bonds, and last those of "no bond". The steps (S,)
    of the paths (see `Paths`) of all graphs, sorted by hop: ``pair`` and ``parent`` are places
    among the B N N pairs, with B N N for no parent, ``bond`` is a row of ``bonds``, and ``sizes``
    are the numbers of steps of hop 1, 2, and so on. ``y`` (B,) is the target.
    """

    atoms: Tensor
    mask: Tensor
    degrees: Tensor
    hops: Tensor
    bonds: Tensor
    pair: Tensor
    parent: Tensor
    bond: Tensor
    weight: Tensor
    sizes: tuple[int, ...]
    y: Tensor

    def first(self, count: int) -> "Batch":
        """The first graphs alone, padded as they are."""
        places = self.hops[:count].numel()
        kept = self.pair < places
        sizes = tuple(int(hop.sum()) for hop in kept.split(list(self.sizes)))
        few = {name: getattr(self, name)[:count] for name in ("atoms", "mask", "degrees", "hops")}
        steps = {name: getattr(self, name)[kept] for name in ("pair", "bond", "weight")}
        parent = self.parent[kept].clamp(max=places)
        return self._replace(**few, **steps, parent=parent, sizes=sizes, y=self.y[:count])


def collate(graphs: Sequence[Data]) -> Batch:
    """Put graphs that went through `ShortestPaths` together.

    Raises ValueError for no graph at all, and for one that lacks an attribute.

    >>> from attention_graph.encodings import ShortestPaths
    >>> ids = {"x": torch.ones(2, 1, dtype=torch.long), "edge_attr": torch.tensor([[3], [3]])}
    >>> pair = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.zeros(1), **ids)
    >>> batch = collate([ShortestPaths()(pair)])
    >>> batch.hops.tolist(), batch.bonds.tolist(), batch.bond.tolist(), batch.sizes
    ([[[0, 1], [1, 0]]], [[3], [1]], [0, 0], (2,))
    """
    parts = _attributes(graphs)
    nodes, edges, steps = (
        np.array([len(part) for part in parts[name]]) for name in ("x", "edge_attr", "step_pair")
    )
    of = {
        name: torch.cat(part, dim=-1 if name == "edge_index" else 0).numpy()
        for name, part in parts.items()
    }
    mask = np.arange(nodes.max()) < nodes[:, None]
    pairs = mask[:, :, None] & mask[:, None, :]
    bonds, row = _distinct(of["edge_attr"])
    # where each pair and each bond of a graph comes to lie; the last is for those that are none
    place = np.append(np.flatnonzero(pairs), pairs.size)
    row = np.append(row, len(bonds) - 1)
    order = np.argsort(of["step_hop"], kind="stable")
    first_pair, first_bond = (np.repeat(_starts(n), steps) for n in (nodes**2, edges))
    arrays = {
        "atoms": _spread(of["x"], mask, 0),
        "mask": mask,
        "degrees": _spread(_degrees(of["edge_index"], nodes, edges), mask, 0),
        "hops": _spread(of["hops"].astype(np.int64), pairs, UNREACHABLE),
        "bonds": bonds,
        "pair": place[_shifted(of["step_pair"], first_pair)][order],
        "parent": place[_shifted(of["step_parent"], first_pair)][order],
        "bond": row[_shifted(of["step_bond"], first_bond)][order],
        "weight": of["step_weight"][order],
        "y": of["y"],
    }
    sizes = tuple(np.bincount(of["step_hop"])[1:].tolist())
    return Batch(sizes=sizes, **{name: torch.from_numpy(array) for name, array in arrays.items()})


def _attributes(graphs: Sequence[Data]) -> dict[str, list[Tensor]]:
    if not graphs:
        raise ValueError("a batch needs at least one graph")
    held = [graph.to_dict() for graph in graphs]  # once: an attribute of a Data takes microseconds
    for place, graph in enumerate(held):
        if missing := [name for name in _NEEDED if graph.get(name) is None]:
            text = "ShortestPaths writes hops and steps, the data set all else"
            raise ValueError(f"graph {place} of the batch has no {', '.join(missing)}: {text}")
    return {name: [graph[name] for graph in held] for name in _NEEDED}


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _shifted(index: np.ndarray, first: np.ndarray) -> np.ndarray:
    return np.where(index < 0, -1, index + first)


def _spread(values: np.ndarray, mask: np.ndarray, fill: int) -> np.ndarray:
    """The values where the mask is True, in its order, and the fill elsewhere."""
    dense = np.full((*mask.shape, *values.shape[1:]), fill, values.dtype)
    dense[mask] = values
    return dense


def _degrees(edges: np.ndarray, nodes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """In- and out-degree of the nodes of all graphs, (nodes, 2)."""
    before, after = edges + np.repeat(_starts(nodes), counts)
    return np.stack([np.bincount(ends, minlength=nodes.sum()) for ends in (after, before)], -1)


def _distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of ids, with "no bond" for the last, and the row of each bond."""
    # a column at a time: np.unique of whole rows takes as long as all else that collate does
    first, row = np.arange(min(len(ids), 1)), np.zeros(len(ids), np.int64)
    for column in ids.T:
        code = row * (column.max(initial=0) + 1) + column
        _, first, row = np.unique(code, return_index=True, return_inverse=True)
    absent = 1 + SHIFT * np.arange(ids.shape[1])
    return np.concatenate([ids[first], absent[None]]), row
