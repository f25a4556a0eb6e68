"""The paths as released with Graphormer, with all their quirks: of use to compare, and no other."""

import numpy as np

from attention_graph.encodings.paths import Paths

FAR = 510  # hops where there is no path


def released_paths(bonds: np.ndarray, nodes: int) -> Paths:
    """One path for each pair along directed bonds (2, E), as in the released code of Graphormer.

    Floyd-Warshall with k outermost, `FAR` hops where there is no path, and an update only where
    strictly shorter:

        d_ik + d_kj < d_ij  ->  d_ij = d_ik + d_kj, path_ij = path_ik + path_kj

    The released code marks "no node in between" by 0, which is a node too. So a path that runs
    through node 0 loses it: the two bonds there become one place of the path, without a bond
    (-1). Hence paths and hops depend on the order of the nodes. The released code lists each
    path anew, O(N^3); all but the last of a path is the path to the node before, so that one step
    for each pair says the same in O(N^2).

    Source: https://github.com/microsoft/Graphormer (algos.pyx of v1.0)

    >>> chain = np.array([[1, 0, 0, 2], [0, 1, 2, 0]])  # 1 - 0 - 2
    >>> paths = released_paths(chain, 3)
    >>> paths.hops[1].tolist()
    [1, 0, 2]
    >>> from_1_to_2 = paths.pair == 5
    >>> paths.hop[from_1_to_2].tolist(), paths.bond[from_1_to_2].tolist()
    ([1], [-1])
    """
    column = np.full((nodes, nodes), -1)
    column[tuple(bonds)] = np.arange(bonds.shape[1])
    hops, before, place = _floyd_warshall(column >= 0)
    source, target = np.nonzero((hops > 0) & (hops < FAR))
    order = np.argsort(place[source, target], kind="stable")
    source, target = source[order], target[order]
    last = before[source, target]
    pair, parent = source * nodes + target, source * nodes + last
    hop = place[source, target]
    return Paths(hops, pair, parent, column[last, target], hop, np.ones(len(pair)))


def _floyd_warshall(bonded: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hops, the last node before j and the number of places of the path from i to j: (N, N)."""
    nodes = len(bonded)
    hops = np.where(bonded, 1, FAR).astype(np.int16)
    np.fill_diagonal(hops, 0)
    before = np.repeat(np.arange(nodes), nodes).reshape(nodes, nodes)
    place = np.ones_like(hops)
    for k in range(nodes):
        through = hops[:, k, None] + hops[k]
        shorter = through < hops
        np.copyto(hops, through, where=shorter)
        if k > 0:  # the quirk: through node 0, a path looks like a single bond
            np.copyto(before, before[k].copy(), where=shorter)
            np.copyto(place, place[:, k, None] + place[k], where=shorter)
    return hops, before, place
