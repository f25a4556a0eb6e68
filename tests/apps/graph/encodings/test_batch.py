"""Dense batches: collate puts together what loops over graphs, nodes, pairs and steps do."""

import numpy as np
from attention_graph.encodings.batch import Batch, collate_graphs
from attention_graph.encodings.paths import ShortestPaths
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tests.apps.graph import reference
from tests.apps.graph.reference import NO_BOND, both_ways, graph, graphs, ids, read_paths

FEATURES = 3
VARIANTS = st.sampled_from(["corrected", "upstream"])


def encode(nodes: int, bonds: reference.Bonds, variant: str = "corrected") -> Data:
    return ShortestPaths(variant)(graph(nodes, bonds, FEATURES))


def ring(nodes: int) -> Data:
    return encode(nodes, both_ways([(n, (n + 1) % nodes, ids(n % 3)) for n in range(nodes)]))


def collect_steps(batch: Batch) -> set[tuple]:
    """The steps, in any order within a hop, with the ids of their bonds."""
    hop = np.repeat(np.arange(len(batch.sizes)), batch.sizes)
    bonds = (tuple(row) for row in batch.bonds[batch.bond].tolist())
    columns = (t.tolist() for t in (batch.pair, batch.parent, batch.weight))
    return set(zip(hop.tolist(), bonds, *columns, strict=True))


def by_loops(data: list[Data]) -> dict[str, object]:
    B, N = len(data), max(graph.num_nodes for graph in data)
    atoms, mask = np.zeros((B, N, FEATURES), int), np.zeros((B, N), bool)
    degrees, hops = np.zeros((B, N, 2), int), np.full((B, N, N), -1)
    steps = set()
    for g, one in enumerate(data):
        n, paths, bonds = one.num_nodes, read_paths(one), one.edge_attr.tolist()

        def place(pair, g=g, n=n) -> int:
            return B * N * N if pair < 0 else int(g * N * N + pair // n * N + pair % n)

        for i in range(n):
            atoms[g, i], mask[g, i] = one.x[i], True
            for j in range(n):
                hops[g, i, j] = paths.hops[i, j]
        for u, v in one.edge_index.T.tolist():
            degrees[g, v, 0] += 1
            degrees[g, u, 1] += 1
        for pair, parent, bond, hop, weight in zip(*paths[1:], strict=True):
            kind = tuple(bonds[bond]) if bond >= 0 else NO_BOND
            steps.add((int(hop) - 1, kind, place(pair), place(parent), float(weight)))
    return {"atoms": atoms, "mask": mask, "degrees": degrees, "hops": hops, "steps": steps}


@given(st.lists(st.booleans().flatmap(graphs), min_size=1, max_size=4), VARIANTS)
def test_a_batch_is_what_loops_put_together(cases, variant) -> None:
    data = [encode(*case, variant) for case in cases]
    batch, expected = collate_graphs(data), by_loops(data)
    for name in ("atoms", "mask", "degrees", "hops"):
        np.testing.assert_array_equal(getattr(batch, name), expected[name])
    assert collect_steps(batch) == expected["steps"]
    assert sum(batch.sizes) == len(batch.pair) == sum(len(one.step_pair) for one in data)
    rows = batch.bonds.tolist()
    assert rows[:-1] == sorted(map(list, {kind for _, bonds in cases for *_, kind in bonds}))
    assert rows[-1] == list(NO_BOND)
    assert batch.y.tolist() == [one.num_nodes for one in data]


def test_the_first_graphs_of_a_batch_are_a_batch() -> None:
    graphs = [ring(5), encode(1, []), ring(4), ring(7)]
    few, expected = collate_graphs(graphs).first(3), collate_graphs(graphs[:3])
    assert (few.hops[:, :5, :5] == expected.hops).all()
    assert (few.hops[:, 5:] == -1).all()
    assert few.y.tolist() == expected.y.tolist()
    assert few.sizes[:3] == (*expected.sizes, 0)
    assert len(few.pair) == len(few.parent) == len(expected.pair)
    assert few.parent.max() <= few.hops.numel()
    bonds = [batch.bonds[batch.bond].tolist() for batch in (few, expected)]
    assert bonds[0] == bonds[1]
