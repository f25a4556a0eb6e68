"""Shortest paths between all nodes of a graph, as the steps that they are made of."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

UNREACHABLE = -1
_CELLS = 1 << 22  # of the table of sources and bonds that is held at a time


class Paths(NamedTuple):
    """Hops (N, N) from node i to node j, and the steps (S,) of the paths, sorted by hop.

    A step extends the path of a pair (i, u), its parent, by a bond (u, j) to the pair (i, j),
    whose ``hop``-th bond that is. Pairs are numbered i N + j, bonds by their column of
    ``edge_index``; -1 stands for no bond. What is summed along the paths to (i, j) is

        S_ij = sum_s weight_s (S_parent(s) + m_hop(s)(bond(s))),   S_ii = 0
    """

    hops: np.ndarray
    pair: np.ndarray
    parent: np.ndarray
    bond: np.ndarray
    hop: np.ndarray
    weight: np.ndarray


def shortest_paths(bonds: np.ndarray, nodes: int) -> Paths:
    """All shortest paths along distinct directed bonds (2, E), each with the same weight.

    The mean over them does not depend on the order of the nodes, as one of them would. With
    d the hops and sigma the number of shortest paths, a bond (u, j) is a step to (i, j) where
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
    hops = _distances(bonds, nodes)
    source, bond = (np.concatenate(part) for part in zip(*_extensions(hops, bonds), strict=True))
    before, after = bonds
    hop = hops[source, after[bond]]
    order = np.argsort(hop, kind="stable")
    hop, source, bond = hop[order], source[order] * nodes, bond[order]
    pair, parent = source + after[bond], source + before[bond]
    weight = _shares(pair, parent, np.bincount(hop).cumsum(), nodes)
    return Paths(hops, pair, parent, bond, hop, weight)


def _distances(bonds: np.ndarray, nodes: int) -> np.ndarray:
    # Floyd-Warshall over whole matrices: at the size of a molecule quicker than scipy's, which
    # spends its time on checks
    hops = np.full((nodes, nodes), nodes, np.int16)
    hops[bonds[0], bonds[1]] = 1
    np.fill_diagonal(hops, 0)
    for k in range(nodes):
        np.minimum(hops, hops[:, k, None] + hops[k], out=hops)
    hops[hops == nodes] = UNREACHABLE
    return hops


def _extensions(hops: np.ndarray, bonds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The sources and the bonds that lead one hop further from them, some sources at a time."""
    before, after = bonds
    rows = max(1, _CELLS // max(1, bonds.shape[1]))
    for start in range(0, len(hops), rows):
        block = hops[start : start + rows]
        end = block[:, after]
        source, bond = np.nonzero((end == block[:, before] + 1) & (end > 0))
        yield source + start, bond


def _shares(pair: np.ndarray, parent: np.ndarray, ends: np.ndarray, nodes: int) -> np.ndarray:
    """The share of the paths to each pair that come from each parent."""
    # 600 nodes have no more than 3^200 paths, which float64 holds
    count = np.zeros(nodes * nodes)
    count[:: nodes + 1] = 1
    for low, high in pairwise(ends):
        np.add.at(count, pair[low:high], count[parent[low:high]])
    return count[parent] / count[pair]
