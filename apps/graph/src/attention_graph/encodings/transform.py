"""The pre-transform of torch-geometric that writes hops and paths into a graph."""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from attention_graph.encodings.paths import shortest_paths
from attention_graph.encodings.released import released_paths

Fidelity = Literal["right", "released"]
_NODES = 2**14 - 1  # the sum of two paths is counted in int16
_BONDS = 2**15 - 1


class ShortestPaths(BaseTransform):
    """Adds the shortest-path distances of all pairs of nodes, and the steps of their paths.

    ``hops`` (N N,) int16: from i to j at place i N + j, and -1 where there is no path;
    ``step_pair``, ``step_parent`` (S,) int32, ``step_bond``, ``step_hop`` (S,) int16 and
    ``step_weight`` (S,) float32: see `Paths`. Flattened, so that torch-geometric can collate
    graphs of different sizes; `distances` gives the square. With fidelity ``released``, paths
    are those of `released_paths`, and there are 510 hops where there is no path.

    Bonds of a node to itself are no steps. Raises ValueError for a graph without a node, for a
    bond that stands twice (its paths would count twice) or names no node, and for more than
    16383 nodes or 32767 directed bonds.

    Source: https://arxiv.org/abs/2106.05234

    >>> pair_and_single = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    >>> distances(ShortestPaths()(pair_and_single)).tolist()
    [[0, 1, -1], [1, 0, -1], [-1, -1, 0]]
    """

    def __init__(self, fidelity: Fidelity = "right") -> None:
        if fidelity not in get_args(Fidelity):
            raise ValueError(f"fidelity must be right or released, got {fidelity!r}")
        self.fidelity = fidelity

    def forward(self, data: Data) -> Data:
        """Write the attributes into the graph."""
        bonds, nodes = _bonds(data)
        find = shortest_paths if self.fidelity == "right" else released_paths
        paths = find(bonds, nodes)
        data.hops = torch.from_numpy(paths.hops.ravel())
        data.step_pair = torch.from_numpy(paths.pair.astype(np.int32))
        data.step_parent = torch.from_numpy(paths.parent.astype(np.int32))
        data.step_bond = torch.from_numpy(paths.bond.astype(np.int16))
        data.step_hop = torch.from_numpy(paths.hop)
        data.step_weight = torch.from_numpy(paths.weight.astype(np.float32))
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fidelity={self.fidelity!r})"


def distances(data: Data) -> Tensor:
    """The hops of a graph as a matrix (N, N), a view; raises ValueError where it has none."""
    if "hops" not in data:
        raise ValueError("the graph has no hops: apply ShortestPaths to it first")
    return data.hops.view(data.num_nodes, data.num_nodes)


def _bonds(data: Data) -> tuple[np.ndarray, int]:
    nodes, edges = data.num_nodes, data.edge_index
    if edges is None or not nodes:
        raise ValueError("a graph needs an edge_index and at least one node")
    bonds = edges.numpy()
    if nodes > _NODES or bonds.shape[1] > _BONDS:
        text = f"{_NODES} nodes and {_BONDS} directed bonds at most"
        raise ValueError(f"a graph may have {text}, got {nodes} and {bonds.shape[1]}")
    if bonds.size and not 0 <= bonds.min() <= bonds.max() < nodes:
        wrong = bonds.min() if bonds.min() < 0 else bonds.max()
        raise ValueError(f"edge_index names node {wrong}, and there are {nodes} nodes, from 0")
    keys = np.sort(bonds[0] * nodes + bonds[1])
    if (twice := keys[1:] == keys[:-1]).any():
        u, v = divmod(int(keys[:-1][twice][0]), nodes)
        text = "torch_geometric.transforms.RemoveDuplicatedEdges drops the second"
        raise ValueError(f"bond {u} -> {v} stands twice in edge_index: {text}")
    return bonds, nodes
