"""Literal shortest paths, and the bias that Graphormer computes from them: a loop for each index.

Bonds are a list of (u, v, ids); `e` embeds the ids of a bond, (G,) -> (H,); W is (L, H, H).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

Bonds = list[tuple[int, int, tuple[int, ...]]]
COLUMNS = 2  # bond features
PADDING, NO_BOND = (0, 0), (1, 513)
FAR = 510


def floyd_warshall(nodes: int, bonds: Bonds) -> tuple[np.ndarray, np.ndarray]:
    """Hops and, as released, the last k that made a path shorter, 0 where there is none."""
    hops, between = np.full((nodes, nodes), FAR), np.zeros((nodes, nodes), int)
    for u, v, _ in bonds:
        hops[u, v] = 1
    for i in range(nodes):
        hops[i, i] = 0
    for k in range(nodes):
        for i in range(nodes):
            for j in range(nodes):
                if hops[i, k] + hops[k, j] < hops[i, j]:
                    hops[i, j], between[i, j] = hops[i, k] + hops[k, j], k
    return hops, between


def all_paths(hops: np.ndarray, bonds: Bonds, i: int, j: int) -> Iterator[list[int]]:
    """Every shortest path from i to j, as the places of its bonds in the list."""
    if i == j:
        yield []
    for place, (u, v, _) in enumerate(bonds):
        if v == j and hops[i, u] + 1 == hops[i, j]:
            for path in all_paths(hops, bonds, i, u):
                yield [*path, place]


def released_path(between: np.ndarray, bonds: Bonds, i: int, j: int) -> list[int]:
    """The one path that the released code lists, with -1 where two nodes have no bond."""

    def inner(a: int, b: int) -> list[int]:
        k = int(between[a, b])
        return [*inner(a, k), k, *inner(k, b)] if k else []

    nodes = [i, *inner(i, j), j]
    column = {(u, v): place for place, (u, v, _) in enumerate(bonds)}
    return [column.get(ends, -1) for ends in pairwise(nodes)]


def path_bias(
    nodes: int, bonds: Bonds, e: Callable, W: np.ndarray, variant: str = "corrected"
) -> np.ndarray:
    """The edge encoding (N, N, H): corrected, the mean over all shortest paths.

    Upstream pads each path to L bonds with the ids of padding.
    """
    hops, between = floyd_warshall(nodes, bonds)
    bias = np.zeros((nodes, nodes, W.shape[-1]))
    for i in range(nodes):
        for j in range(nodes):
            if variant == "corrected":
                paths = list(all_paths(hops, bonds, i, j)) if hops[i, j] < FAR else []
                lists = [[bonds[place][2] for place in path] for path in paths]
            else:
                path = released_path(between, bonds, i, j) if 0 < hops[i, j] < FAR else []
                ids = [bonds[place][2] if place >= 0 else NO_BOND for place in path]
                lists = [ids + [PADDING] * (len(W) - len(ids))]
            for ids in lists:
                for k in range(min(len(ids), len(W))):
                    bias[i, j] += e(ids[k]) @ W[k] / len(lists)
            bias[i, j] /= max(1, min(hops[i, j], len(W)))
    return bias


def graph(nodes: int, bonds: Bonds, features: int = 1) -> Data:
    """The graph as the app knows it; node n has ids n + 1, n + 513 and so on."""
    ends = np.array([bond[:2] for bond in bonds], np.int64).reshape(-1, 2)
    ids = np.array([bond[2] for bond in bonds], np.int64).reshape(-1, COLUMNS)
    x = 1 + np.arange(nodes)[:, None] + 512 * np.arange(features)
    arrays = {"x": x, "edge_index": ends.T.copy(), "edge_attr": ids}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Data(y=torch.tensor([float(nodes)]), **tensors)


def both_ways(bonds: Bonds) -> Bonds:
    return [*bonds, *((v, u, ids) for u, v, ids in bonds)]


def ids(kind: int) -> tuple[int, int]:
    return 2 + kind, 514 + kind % 2


@st.composite
def graphs(draw, directed: bool = False, largest: int = 9) -> tuple[int, Bonds]:
    """A graph of a few nodes, connected or not, of bonds of three kinds, in any order."""
    nodes = draw(st.integers(1, largest))
    ends = [(u, v) for u in range(nodes) for v in range(nodes) if (u != v if directed else u < v)]
    chosen = draw(st.lists(st.sampled_from(ends), unique=True, max_size=16)) if ends else []
    bonds = [(u, v, ids(draw(st.integers(0, 2)))) for u, v in chosen]
    return nodes, bonds if directed else both_ways(bonds)
