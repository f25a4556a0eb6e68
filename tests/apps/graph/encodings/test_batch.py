"""Dense batches: tests of Graphormer compare what it computes of them."""

import torch
from attention_graph.encodings.batch import collate_graphs
from attention_graph.encodings.paths import ShortestPaths
from lightning.pytorch.plugins.precision import HalfPrecision
from torch_geometric.data import Data

from tests.apps.graph.reference import both_ways, graph, ids


def ring(nodes: int) -> Data:
    bonds = [(n, (n + 1) % nodes, ids(n % 3)) for n in range(nodes)]
    return ShortestPaths()(graph(nodes, both_ways(bonds), 3))


def test_the_first_graphs_of_a_batch_are_a_batch() -> None:
    graphs = [ring(5), ShortestPaths()(graph(1, [], 3)), ring(4), ring(7)]
    few, expected = collate_graphs(graphs).first(3), collate_graphs(graphs[:3])
    assert (few.hops[:, :5, :5] == expected.hops).all()
    assert (few.hops[:, 5:] == -1).all()
    assert not torch.cat([few.atoms, few.degrees], -1)[~few.mask].any()
    assert few.y.tolist() == expected.y.tolist() == [5, 1, 4]
    assert HalfPrecision("bf16-true").convert_input(few).read_targets().dtype == torch.float32
    assert few.sizes[:3] == (*expected.sizes, 0)
    assert len(few.pair) == len(few.parent) == len(expected.pair)
    assert few.parent.max() <= few.hops.numel()
    assert len(few.bonds) == 3 + 1  # each kind once, and none
    bonds = [batch.bonds[batch.bond].tolist() for batch in (few, expected)]
    assert bonds[0] == bonds[1]
