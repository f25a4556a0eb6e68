"""Hops as literal Floyd-Warshall says; tests of Graphormer compare what the steps sum to."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from attention_graph.encodings.paths import ShortestPaths, shortest_paths, upstream_paths
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tests.apps.graph import reference
from tests.apps.graph.reference import Bonds, both_ways, graph, graphs, ids

FIND = {"corrected": shortest_paths, "upstream": upstream_paths}


def find_paths(nodes: int, bonds: Bonds, variant: str = "corrected"):
    return FIND[variant](graph(nodes, bonds).edge_index.numpy(), nodes)


def chain(*nodes: int) -> Bonds:
    return both_ways([(u, v, ids(place % 3)) for place, (u, v) in enumerate(pairwise(nodes))])


@given(st.booleans().flatmap(lambda directed: graphs(directed=directed)))
def test_hops_are_those_of_floyd_warshall(case) -> None:
    hops = reference.floyd_warshall(*case)[0]
    np.testing.assert_array_equal(find_paths(*case, "upstream").hops, hops)
    np.testing.assert_array_equal(find_paths(*case).hops, np.where(hops == reference.FAR, -1, hops))


@pytest.mark.parametrize("variant", FIND)
def test_a_bond_of_a_node_to_itself_is_no_step(variant) -> None:
    plain, loop = chain(1, 0, 2), [(1, 1, ids(0))]
    same = (find_paths(3, bonds, variant) for bonds in (plain, plain + loop))
    for one, other in zip(*same, strict=True):
        np.testing.assert_array_equal(one, other)
    for none in (torch.tensor([]), torch.tensor([[], []])):
        assert ShortestPaths(variant)(Data(edge_index=none, num_nodes=2)).step_pair.shape == (0,)


def test_the_number_of_sources_at_a_time_changes_nothing(monkeypatch) -> None:
    ladder = [*chain(*range(9)), *chain(*range(9, 18)), *chain(0, 9), *chain(8, 17), *chain(4, 13)]
    bonds = graph(18, ladder).edge_index.numpy()
    at_once = shortest_paths(bonds, 18)
    monkeypatch.setattr("attention_graph.encodings.paths._MAX_CELLS", 5 * bonds.shape[1])
    for part, same in zip(shortest_paths(bonds, 18), at_once, strict=True):
        np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize(("bonds", "nodes", "sentence"), [
    ([[0, 2, 0], [1, 1, 1]], 3, "a bond is twice in edge_index"),
    ([[0, -1], [1, 0]], 2, "edge_index has node -1, and x 2 rows"),
    ([[0], [1]], 16384, "16383 nodes and 32767 directed bonds"),
])  # fmt: skip
def test_unusable_graphs_are_refused(bonds, nodes, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        ShortestPaths()(Data(edge_index=torch.tensor(bonds), num_nodes=nodes))
