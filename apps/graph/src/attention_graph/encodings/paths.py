"""Shortest paths between all nodes of a graph, stored as the steps that they consist of.

A step appends one bond to a shorter path. For the two paths from node 0 to node 2 of a square,

    0 --- 1      step (0, 0) -> (0, 1)   hop 1, weight 1      to (0, 1)
    |     |      step (0, 0) -> (0, 3)   hop 1, weight 1      to (0, 3)
    3 --- 2      step (0, 1) -> (0, 2)   hop 2, weight 1/2    the path over 1
                 step (0, 3) -> (0, 2)   hop 2, weight 1/2    the path over 3

so that N^2 sums over paths need at most N steps for each bond, and no path is ever stored.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

Variant = Literal["corrected", "upstream"]
MAX_NODES = 2**14 - 1  # the sum of two paths is counted in int16
_MAX_BONDS = 2**15 - 1
UNREACHABLE = -1
UPSTREAM_FAR = 510  # hops of upstream's code between nodes without a path
_MAX_CELLS = 1 << 22  # cells of the table of sources and bonds in memory at a time


class Paths(NamedTuple):
    """Hops (N, N) from node i to node j, and the steps (S,) of the paths, sorted by hop.

    A step extends the path of a pair (i, u), its parent, by a bond (u, j) to the pair (i, j), as
    the ``hop``-th bond of that path. Pairs are numbered i N + j, bonds by their column of
    ``edge_index``; -1 means no bond. The sum along the paths to (i, j) is

        S_ij = sum_s weight_s (S_parent(s) + m_hop(s)(bond(s))),   S_ii = 0
    """

    hops: np.ndarray
    pair: np.ndarray
    parent: np.ndarray
    bond: np.ndarray
    hop: np.ndarray
    weight: np.ndarray


def shortest_paths(bonds: np.ndarray, num_nodes: int) -> Paths:
    """Find all shortest paths along distinct directed bonds (2, E), each with the same weight.

    Their mean does not depend on the order of the nodes, unlike any single path. With d the hops
    and sigma the number of shortest paths, a bond (u, j) is a step to (i, j) if
    d_ij = d_iu + 1, and

        weight = sigma_iu / sigma_ij,   sigma_ij = sum_u sigma_iu,   sigma_ii = 1

    A pair without a path has `UNREACHABLE` hops and no step; a bond of a node to itself is none.
    There are at most N steps for a bond, whatever the length and the number of paths.

    Source: https://arxiv.org/abs/2106.05234 (there, one shortest path for each pair)

    >>> square = np.array([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])
    >>> paths = shortest_paths(square, 4)
    >>> paths.hops[0].tolist()
    [0, 1, 2, 1]
    >>> to_2 = paths.pair == 2
    >>> paths.parent[to_2].tolist(), paths.weight[to_2].tolist()
    ([1, 3], [0.5, 0.5])
    """
    hops = _count_hops(bonds, num_nodes)
    source, bond = (np.concatenate(part) for part in zip(*_find_steps(hops, bonds), strict=True))
    before, after = bonds
    hop = hops[source, after[bond]]
    order = np.argsort(hop, kind="stable")
    hop, source, bond = hop[order], source[order] * num_nodes, bond[order]
    pair, parent = source + after[bond], source + before[bond]
    count = np.zeros(num_nodes**2)  # 600 nodes have at most 3^200 paths, which float64 holds
    count[:: num_nodes + 1] = 1
    for low, high in pairwise(np.bincount(hop).cumsum()):
        np.add.at(count, pair[low:high], count[parent[low:high]])
    return Paths(hops, pair, parent, bond, hop, count[parent] / count[pair])


def _count_hops(bonds: np.ndarray, num_nodes: int) -> np.ndarray:
    # Floyd-Warshall on whole matrices: for molecules faster than scipy's, which spends its time
    # on checks
    hops = np.full((num_nodes, num_nodes), num_nodes, np.int16)
    hops[bonds[0], bonds[1]] = 1
    np.fill_diagonal(hops, 0)
    for k in range(num_nodes):
        np.minimum(hops, hops[:, k, None] + hops[k], out=hops)
    hops[hops == num_nodes] = UNREACHABLE
    return hops


def _find_steps(hops: np.ndarray, bonds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield sources and bonds that lead one hop further from them, some sources at a time."""
    before, after = bonds
    rows = max(1, _MAX_CELLS // max(1, bonds.shape[1]))
    for start in range(0, len(hops), rows):
        block = hops[start : start + rows]
        end = block[:, after]
        source, bond = np.nonzero((end == block[:, before] + 1) & (end > 0))
        yield source + start, bond


def upstream_paths(bonds: np.ndarray, num_nodes: int) -> Paths:
    """Find one path for each pair along directed bonds (2, E), exactly as Graphormer's code does.

    For comparison only. Floyd-Warshall with k outermost, `UPSTREAM_FAR` hops between nodes without
    a path, and an update only if strictly shorter:

        d_ik + d_kj < d_ij  ->  d_ij = d_ik + d_kj, path_ij = path_ik + path_kj

    That code marks "no node in between" by 0, which is a node too. So a path through node 0 loses
    it: its two bonds there become one step without a bond (-1). Hence paths and hops depend on
    the order of the nodes. That code lists each path anew, O(N^3); all but the last bond of a
    path is the path to the node before, so that one step for each pair says the same in O(N^2).

    Source: https://github.com/microsoft/Graphormer (algos.pyx of v1.0)

    >>> chain = np.array([[1, 0, 0, 2], [0, 1, 2, 0]])  # 1 - 0 - 2
    >>> paths = upstream_paths(chain, 3)
    >>> paths.hops[1].tolist()
    [1, 0, 2]
    >>> from_1_to_2 = paths.pair == 5
    >>> paths.hop[from_1_to_2].tolist(), paths.bond[from_1_to_2].tolist()
    ([1], [-1])
    """
    column = np.full((num_nodes, num_nodes), -1)
    column[tuple(bonds)] = np.arange(bonds.shape[1])
    hops, before, length = _upstream_floyd_warshall(column >= 0)
    source, target = np.nonzero((hops > 0) & (hops < UPSTREAM_FAR))
    order = np.argsort(length[source, target], kind="stable")
    source, target = source[order], target[order]
    last = before[source, target]
    pair, parent = source * num_nodes + target, source * num_nodes + last
    hop = length[source, target]
    return Paths(hops, pair, parent, column[last, target], hop, np.ones(len(pair)))


def _upstream_floyd_warshall(is_bond: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hops, the last node before j and the listed length of the path i to j: (N, N)."""
    num_nodes = len(is_bond)
    hops = np.where(is_bond, 1, UPSTREAM_FAR).astype(np.int16)
    np.fill_diagonal(hops, 0)
    before = np.repeat(np.arange(num_nodes), num_nodes).reshape(num_nodes, num_nodes)
    length = np.ones_like(hops)
    for k in range(num_nodes):
        through = hops[:, k, None] + hops[k]
        shorter = through < hops
        np.copyto(hops, through, where=shorter)
        if k > 0:  # the quirk: a path through node 0 looks like a single bond
            np.copyto(before, before[k].copy(), where=shorter)
            np.copyto(length, length[:, k, None] + length[k], where=shorter)
    return hops, before, length


class ShortestPaths(BaseTransform):
    """Add the shortest-path distances of all pairs of nodes, and the steps of their paths.

    ``hops`` (N N,) int16: from i to j at position i N + j, and -1 without a path;
    ``step_pair``, ``step_parent`` (S,) int32, ``step_bond``, ``step_hop`` (S,) int16 and
    ``step_weight`` (S,) float32: see `Paths`. They are flat, so that torch-geometric can collate
    graphs of different sizes. Variant ``upstream`` takes the paths of `upstream_paths`, with 510
    hops between nodes without a path.

    Bonds of a node to itself are no steps. Raises ValueError for a bond that is given twice (its
    paths would count twice), and for more than 16383 nodes or 32767 directed bonds.

    Source: https://arxiv.org/abs/2106.05234

    >>> pair_and_single = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    >>> ShortestPaths()(pair_and_single).hops.view(3, 3).tolist()
    [[0, 1, -1], [1, 0, -1], [-1, -1, 0]]
    """

    def __init__(self, variant: Variant = "corrected") -> None:
        self.find_paths = shortest_paths if variant == "corrected" else upstream_paths

    def forward(self, data: Data) -> Data:
        """Write the attributes into the graph."""
        if not data.edge_index.numel():  # torch.tensor([[], []]) is of floats
            data.edge_index = torch.empty(2, 0, dtype=torch.long)
        bonds, num_nodes = data.edge_index.numpy(), data.num_nodes
        if num_nodes > MAX_NODES or bonds.shape[1] > _MAX_BONDS:
            text = f"{MAX_NODES} nodes and {_MAX_BONDS} directed bonds at most"
            raise ValueError(f"a graph may have {text}, got {num_nodes} and {bonds.shape[1]}")
        if len(wrong := np.setdiff1d(bonds, np.arange(num_nodes))):
            raise ValueError(f"edge_index has node {wrong[0]}, and x {num_nodes} rows")
        if len(np.unique(bonds[0] * num_nodes + bonds[1])) < bonds.shape[1]:
            text = "torch_geometric.transforms.RemoveDuplicatedEdges drops the second"
            raise ValueError(f"a bond is twice in edge_index: {text}")
        paths = self.find_paths(bonds, num_nodes)
        data.hops = torch.from_numpy(paths.hops.ravel())
        data.step_pair = torch.from_numpy(paths.pair.astype(np.int32))
        data.step_parent = torch.from_numpy(paths.parent.astype(np.int32))
        data.step_bond = torch.from_numpy(paths.bond.astype(np.int16))
        data.step_hop = torch.from_numpy(paths.hop)
        data.step_weight = torch.from_numpy(paths.weight.astype(np.float32))
        return data
