"""The pre-transform of torch-geometric that writes hops and paths into a graph."""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from attention_graph.encodings.paths import shortest_paths, upstream_paths

Variant = Literal["corrected", "upstream"]
MAX_NODES = 2**14 - 1  # the sum of two paths is counted in int16
_MAX_BONDS = 2**15 - 1


class ShortestPaths(BaseTransform):
    """Add the shortest-path distances of all pairs of nodes, and the steps of their paths.

    ``hops`` (N N,) int16: from i to j at position i N + j, and -1 without a path;
    ``step_pair``, ``step_parent`` (S,) int32, ``step_bond``, ``step_hop`` (S,) int16 and
    ``step_weight`` (S,) float32: see `Paths`. They are flat, so that torch-geometric can collate
    graphs of different sizes; `hop_matrix` returns the square. Variant ``upstream`` takes the
    paths of `upstream_paths`, with 510 hops between nodes without a path.

    Bonds of a node to itself are no steps. Raises ValueError for a graph without a node, for a
    bond that is given twice (its paths would count twice) or names no node, and for more than
    16383 nodes or 32767 directed bonds.

    Source: https://arxiv.org/abs/2106.05234

    >>> pair_and_single = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    >>> hop_matrix(ShortestPaths()(pair_and_single)).tolist()
    [[0, 1, -1], [1, 0, -1], [-1, -1, 0]]
    """

    def __init__(self, variant: Variant = "corrected") -> None:
        if variant not in get_args(Variant):
            raise ValueError(f"variant must be corrected or upstream, got {variant!r}")
        self.variant = variant

    def forward(self, data: Data) -> Data:
        """Write the attributes into the graph."""
        bonds, num_nodes = _check_bonds(data)
        find_paths = shortest_paths if self.variant == "corrected" else upstream_paths
        paths = find_paths(bonds, num_nodes)
        data.hops = torch.from_numpy(paths.hops.ravel())
        data.step_pair = torch.from_numpy(paths.pair.astype(np.int32))
        data.step_parent = torch.from_numpy(paths.parent.astype(np.int32))
        data.step_bond = torch.from_numpy(paths.bond.astype(np.int16))
        data.step_hop = torch.from_numpy(paths.hop)
        data.step_weight = torch.from_numpy(paths.weight.astype(np.float32))
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(variant={self.variant!r})"


def hop_matrix(data: Data) -> Tensor:
    """Return the hops of a graph as a matrix (N, N), a view; raises ValueError without hops."""
    if "hops" not in data:
        raise ValueError("the graph has no hops: apply ShortestPaths to it first")
    return data.hops.view(data.num_nodes, data.num_nodes)


def _check_bonds(data: Data) -> tuple[np.ndarray, int]:
    num_nodes, edges = data.num_nodes, data.edge_index
    if edges is None or not num_nodes:
        raise ValueError("a graph needs an edge_index and at least one node")
    bonds = edges.numpy()
    if num_nodes > MAX_NODES or bonds.shape[1] > _MAX_BONDS:
        text = f"{MAX_NODES} nodes and {_MAX_BONDS} directed bonds at most"
        raise ValueError(f"a graph may have {text}, got {num_nodes} and {bonds.shape[1]}")
    if bonds.size and not 0 <= bonds.min() <= bonds.max() < num_nodes:
        wrong = bonds.min() if bonds.min() < 0 else bonds.max()
        raise ValueError(f"edge_index names node {wrong}, and there are {num_nodes} nodes, from 0")
    keys = np.sort(bonds[0] * num_nodes + bonds[1])
    if (twice := keys[1:] == keys[:-1]).any():
        u, v = divmod(int(keys[:-1][twice][0]), num_nodes)
        text = "torch_geometric.transforms.RemoveDuplicatedEdges drops the second"
        raise ValueError(f"bond {u} -> {v} is twice in edge_index: {text}")
    return bonds, num_nodes
