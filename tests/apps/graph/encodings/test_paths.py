"""Hops and steps of paths: as literal Floyd-Warshall and the enumeration of all paths say."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from attention_graph.encodings.paths import ShortestPaths, shortest_paths, upstream_paths
from hypothesis import example, given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tests.apps.graph import reference
from tests.apps.graph.reference import Bonds, both_ways, graph, graphs, ids, read_paths

e, W = reference.parameters()
ANY = st.booleans().flatmap(lambda directed: graphs(directed=directed))
FIND = {"corrected": shortest_paths, "upstream": upstream_paths}


def find_paths(nodes: int, bonds: Bonds, variant: str = "corrected"):
    return FIND[variant](graph(nodes, bonds).edge_index.numpy(), nodes)


def compute_bias(nodes: int, bonds: Bonds, variant: str = "corrected") -> np.ndarray:
    return reference.evaluate(find_paths(nodes, bonds, variant), reference.messages(bonds, e, W))


def chain(*nodes: int) -> Bonds:
    return both_ways([(u, v, ids(place % 3)) for place, (u, v) in enumerate(pairwise(nodes))])


# from corner to corner, 6 paths meet in shares of 1/3 and 1/2
ACROSS = [(n, n + 1, ids(n % 3)) for n in range(9) if n % 3 < 2]
GRID = 9, both_ways([*ACROSS, *((n, n + 3, ids(n % 2)) for n in range(6))])


@given(ANY)
def test_hops_are_those_of_floyd_warshall(case) -> None:
    hops = reference.floyd_warshall(*case)[0]
    np.testing.assert_array_equal(find_paths(*case, "upstream").hops, hops)
    np.testing.assert_array_equal(find_paths(*case).hops, np.where(hops == reference.FAR, -1, hops))


@given(ANY)
@example(GRID)
def test_steps_give_the_mean_over_all_shortest_paths(case) -> None:
    np.testing.assert_allclose(compute_bias(*case), reference.path_bias(*case, e, W), atol=1e-12)


@given(ANY)
@example(GRID)
def test_released_steps_give_the_one_path_of_the_released_code(case) -> None:
    expected = reference.path_bias(*case, e, W, "upstream")
    np.testing.assert_allclose(compute_bias(*case, "upstream"), expected, atol=1e-12)


@pytest.mark.parametrize("variant", FIND)
def test_a_bond_of_a_node_to_itself_is_no_step(variant) -> None:
    plain, loop = chain(1, 0, 2), [(1, 1, ids(0))]
    same = (compute_bias(3, bonds, variant) for bonds in (plain, plain + loop))
    np.testing.assert_array_equal(*same)
    assert (find_paths(3, plain + loop, variant).hops.diagonal() == 0).all()


@pytest.mark.parametrize("variant", FIND)
def test_a_graph_holds_its_paths_in_narrow_dtypes(variant) -> None:
    plain = graph(4, chain(1, 0, 2, 3, 1))
    data = ShortestPaths(variant)(plain)
    assert "hops" not in plain
    dtypes = {name: str(data[name].dtype)[6:] for name in set(data.keys()) - set(plain.keys())}
    assert dtypes == {
        "hops": "int16", "step_pair": "int32", "step_parent": "int32", "step_bond": "int16",
        "step_hop": "int16", "step_weight": "float32",
    }  # fmt: skip
    paths = find_paths(4, chain(1, 0, 2, 3, 1), variant)
    for kept, name in zip(read_paths(data), paths._fields, strict=True):
        np.testing.assert_allclose(kept, getattr(paths, name), rtol=1e-7)
    assert (data.step_hop.diff() >= 0).all()


def ladder(rungs: int) -> np.ndarray:
    n = np.arange(rungs)
    rails = [[n[:-1], n[1:]], [n[:-1] + rungs, n[1:] + rungs], [n, n + rungs]]
    half = np.concatenate([np.stack(part) for part in rails], axis=1)
    return np.concatenate([half, half[::-1]], axis=1)


def test_the_number_of_sources_at_a_time_changes_nothing(monkeypatch) -> None:
    bonds = ladder(9)
    at_once = shortest_paths(bonds, 18)
    monkeypatch.setattr("attention_graph.encodings.paths._MAX_CELLS", 5 * bonds.shape[1])
    for part, same in zip(shortest_paths(bonds, 18), at_once, strict=True):
        np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize(
    ("bonds", "nodes", "sentence"),
    [
        ([[0, 2, 0], [1, 1, 1]], 3, "a bond is twice in edge_index"),
        ([[0], [1]], 16384, "16383 nodes and 32767 directed bonds"),
    ],
)
def test_unusable_graphs_are_refused(bonds, nodes, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        ShortestPaths()(Data(edge_index=torch.tensor(bonds), num_nodes=nodes))
