"""Graphs of different sizes as one dense batch, with the steps of all their paths.

Two graphs of 2 and 3 nodes, padded to N = 3; the pairs (i, j) of graph g have position
g N^2 + i N + j, to which the steps of the paths refer:

    mask        hops of graph 0      pairs of graph 0     pairs of graph 1
    1 1 0        0  1 -1              0  1  .              9 10 11
    1 1 1        1  0 -1              3  4  .             12 13 14
                -1 -1 -1              .  .  .             15 16 17        18: no parent
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from experiment_kit.errors import UserError, convert_user_errors
from torch import Tensor
from torch_geometric.data import Data

from attention_graph.encodings.paths import UNREACHABLE

ID_OFFSET = 512  # between the ids of a column of features and those of the one before
_ATTRIBUTES = (
    "x", "edge_index", "edge_attr", "y",
    "hops", "step_pair", "step_parent", "step_bond", "step_hop", "step_weight",
)  # fmt: skip


class Batch(NamedTuple):
    """B graphs, padded to the N nodes of the largest one.

    ``atoms`` (B, N, F), ids of features, and ``mask`` (B, N), True at nodes; ``degrees``
    (B, N, 2) in and out; ``hops`` (B, N, N). Padding is 0, and -1 in ``hops``.

    ``bonds`` (U + 1, G): the distinct ids of bonds, and last those of "no bond". The steps (S,)
    of the paths (see `Paths`) of all graphs, sorted by hop: ``pair`` and ``parent`` are positions
    among the B N N pairs, with B N N for no parent, ``bond`` is a row of ``bonds``, and ``sizes``
    are the numbers of steps of hop 1, 2, and so on. ``y`` (B,) is the target, and ``targets`` the
    same in numpy, since Lightning rounds tensors in half precision.
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
    targets: np.ndarray | None = None

    def read_targets(self) -> Tensor:
        """Return the exact targets, on the device of the batch."""
        return torch.as_tensor(self.y if self.targets is None else self.targets).to(self.y.device)

    def first(self, count: int) -> "Batch":
        """Return the first graphs, with the same padding; the spectral monitor calls it."""
        num_pairs = self.hops[:count].numel()
        kept = self.pair < num_pairs
        sizes = tuple(int(hop.sum()) for hop in kept.split(list(self.sizes)))
        few = {name: getattr(self, name)[:count] for name in ("atoms", "mask", "degrees", "hops")}
        steps = {name: getattr(self, name)[kept] for name in ("pair", "bond", "weight")}
        parent = self.parent[kept].clamp(max=num_pairs)
        few |= {"y": self.y[:count], "targets": self.read_targets()[:count].cpu().numpy()}
        return self._replace(**few, **steps, parent=parent, sizes=sizes)


def collate_graphs(graphs: Sequence[Data]) -> Batch:
    """Join graphs that went through `ShortestPaths`, one or more.

    >>> from attention_graph.encodings.paths import ShortestPaths
    >>> ids = {"x": torch.ones(2, 1, dtype=torch.long), "edge_attr": torch.tensor([[3], [3]])}
    >>> pair = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.zeros(1), **ids)
    >>> batch = collate_graphs([ShortestPaths()(pair)])
    >>> batch.hops.tolist(), batch.bonds.tolist(), batch.bond.tolist(), batch.sizes
    ([[[0, 1], [1, 0]]], [[3], [1]], [0, 0], (2,))
    """
    held = [graph.to_dict() for graph in graphs]  # once: an attribute of a Data takes microseconds
    needed = "a graph takes x, edge_attr, y, and what ShortestPaths adds (docs/own_data.md), not "
    with convert_user_errors(KeyError, prefix=f"{needed}without "):
        parts = {name: [graph[name] for graph in held] for name in _ATTRIBUTES}
    parts["y"] = [torch.as_tensor(y).reshape(-1) for y in parts["y"]]
    nodes, edges, steps = (
        np.array([len(part) for part in parts[name]]) for name in ("x", "edge_attr", "step_pair")
    )
    joined = {
        name: torch.cat(part, dim=-1 if name == "edge_index" else 0).numpy()
        for name, part in parts.items()
    }
    _check_ids(joined["x"], "x", 1)
    _check_ids(joined["edge_attr"], "edge_attr", 2)
    if joined["edge_index"].shape[1] != len(joined["edge_attr"]):
        raise UserError("edge_attr must have a row for each column of edge_index")
    if len(joined["y"]) != len(graphs):
        raise UserError(f"y must be one number, got {len(joined['y'])} for {len(graphs)} graphs")
    mask = np.arange(nodes.max()) < nodes[:, None]
    pairs = mask[:, :, None] & mask[:, None, :]
    bonds, row = _find_distinct(joined["edge_attr"])
    # the position of each pair and the row of each bond; the last entry is for "none"
    position, row = np.append(np.flatnonzero(pairs), pairs.size), np.append(row, len(bonds) - 1)
    order = np.argsort(joined["step_hop"], kind="stable")
    first_pair, first_bond = (np.repeat(np.cumsum(n) - n, steps) for n in (nodes**2, edges))
    arrays = {
        "atoms": _scatter(joined["x"], mask, 0),
        "mask": mask,
        "degrees": _scatter(_count_degrees(joined["edge_index"], nodes, edges), mask, 0),
        "hops": _scatter(joined["hops"].astype(np.int64), pairs, UNREACHABLE),
        "bonds": bonds,
        "pair": position[_offset_indices(joined["step_pair"], first_pair)][order],
        "parent": position[_offset_indices(joined["step_parent"], first_pair)][order],
        "bond": row[_offset_indices(joined["step_bond"], first_bond)][order],
        "weight": joined["step_weight"][order],
        "y": joined["y"],
    }
    sizes = tuple(np.bincount(joined["step_hop"])[1:].tolist())
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(sizes=sizes, targets=joined["y"], **tensors)


def _check_ids(ids: np.ndarray, name: str, first: int) -> None:
    """Raise UserError unless an array has ids (S, F), from `first` + 512 c on in column c."""
    is_table = ids.ndim == 2 and ids.dtype in (np.int32, np.int64)
    if not is_table or (ids < first + ID_OFFSET * np.arange(ids.shape[1])).any():
        text = f"{name} {ids.shape} of {ids.dtype} must be ids (rows, columns) of int64, in column"
        raise UserError(f"{text} c from {first} + {ID_OFFSET} c on (docs/own_data.md)")


def _offset_indices(index: np.ndarray, first: np.ndarray) -> np.ndarray:
    return np.where(index < 0, -1, index + first)


def _scatter(values: np.ndarray, mask: np.ndarray, fill: int) -> np.ndarray:
    """Write the values to where the mask is True, in its order, and the fill elsewhere."""
    dense = np.full((*mask.shape, *values.shape[1:]), fill, values.dtype)
    dense[mask] = values
    return dense


def _count_degrees(edges: np.ndarray, nodes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Count the in- and out-degree of the nodes of all graphs, (nodes, 2)."""
    before, after = edges + np.repeat(np.cumsum(nodes) - nodes, counts)
    return np.stack([np.bincount(ends, minlength=nodes.sum()) for ends in (after, before)], -1)


def _find_distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of ids, with "no bond" for the last, and the row of each bond."""
    # a column at a time: np.unique of whole rows takes as long as the rest of the collation
    first, row = np.arange(min(len(ids), 1)), np.zeros(len(ids), np.int64)
    for column in ids.T:
        code = row * (column.max(initial=0) + 1) + column
        _, first, row = np.unique(code, return_index=True, return_inverse=True)
    absent = 1 + ID_OFFSET * np.arange(ids.shape[1])
    return np.concatenate([ids[first], absent[None]]), row
