"""Graphormer beside its literal equations: bias, paths, padding, order of nodes, parameters."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, Plain, SelfAttention
from attention_graph.encodings.batch import Batch, collate_graphs
from attention_graph.encodings.paths import ShortestPaths
from attention_graph.models.graphormer import AtomEmbedding, Graphormer, GraphormerConfig
from attention_graph.models.paths import AttentionBias, Steps, sum_along_paths
from attention_graph.module import GraphRegressor
from experiment_kit.errors import UserError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.apps.graph import reference
from tests.apps.graph.reference import both_ways, graph, graphs, ids

HEADS, HOPS, DIM = 3, 4, 6
RING = both_ways([(0, 1, ids(0)), (1, 2, ids(1)), (2, 3, ids(2)), (3, 0, ids(0)), (3, 4, ids(1))])
# from corner to corner, 6 paths meet in shares of 1/3 and 1/2
ACROSS = [(n, n + 1, ids(n % 3)) for n in range(9) if n % 3 < 2]
GRID = 9, both_ways([*ACROSS, *((n, n + 3, ids(n % 2)) for n in range(6))])
SMALL = st.lists(graphs(largest=6), min_size=1, max_size=3)


def make_batch(shapes, variant="corrected", features=2) -> Batch:
    batch = collate_graphs([ShortestPaths(variant)(graph(n, b, features)) for n, b in shapes])
    return batch._replace(weight=batch.weight.double())


def make_bias(variant="corrected", distances=520) -> AttentionBias:
    bias = AttentionBias(HEADS, 1024, distances, HOPS, HOPS + 1, variant).double()
    for table in bias.children():
        torch.nn.init.normal_(table.weight)
    if variant == "corrected":
        torch.nn.init.zeros_(bias.bond.weight[0])
    return bias


def by_loops(bias: AttentionBias, shapes, variant: str) -> torch.Tensor:
    """B_ij of eq. 6 and 7, pair by pair; the virtual node is the first."""
    N = max(nodes for nodes, _ in shapes)
    tables = {name: t.weight.detach().numpy() for name, t in bias.named_children()}
    bond, W = tables["bond"], tables["hop"].reshape(-1, HEADS, HEADS)[:HOPS]
    found = np.full((len(shapes), HEADS, N + 1, N + 1), -np.inf)
    for b, (nodes, bonds) in enumerate(shapes):
        edges = reference.path_bias(nodes, bonds, lambda row: bond[list(row)].mean(0), W, variant)
        hops, _ = reference.floyd_warshall(nodes, bonds)
        for i, j in product(range(nodes), range(nodes)):
            unreached = hops[i, j] == reference.FAR and variant == "corrected"
            row = 0 if unreached else min(hops[i, j] + 1, len(tables["distance"]) - 1)
            found[b, :, i + 1, j + 1] = tables["distance"][row] + edges[i, j]
        found[b, :, 0, : nodes + 1] = found[b, :, :, 0] = tables["virtual"][0][:, None]
    return torch.from_numpy(found)


@pytest.mark.parametrize("variant", ["corrected", "upstream"])
@settings(max_examples=25, deadline=None)
@given(shapes=SMALL)
@example(shapes=[GRID])
def test_the_bias_equals_the_reference(variant, shapes) -> None:
    bias, batch = make_bias(variant), make_batch(shapes, variant)
    both, rows = (bias(batch), by_loops(bias, shapes, variant)), F.pad(batch.mask, (1, 0), value=1)
    assert_close(*(values.transpose(1, 2)[rows] for values in both), rtol=1e-6, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(shapes=SMALL)
def test_the_gradients_of_sums_along_paths(shapes) -> None:
    batch = make_batch(shapes)
    messages = torch.randn(2, len(batch.bonds), HEADS).double().requires_grad_()
    steps = Steps(batch.pair, batch.parent, batch.bond, batch.weight, batch.sizes)
    sum_messages = partial(sum_along_paths, steps=steps, num_pairs=batch.hops.numel())
    if messages.numel() and sum(batch.sizes) < 40:
        assert torch.autograd.gradcheck(sum_messages, messages)
        assert torch.autograd.gradgradcheck(sum_messages, messages)


def build_network(filter=Plain, version="v1") -> Graphormer:
    config = GraphormerConfig(1024 + 64, 1024, DIM, HEADS, 2, 7, 9, 4, HOPS, HOPS)
    attention = partial(SelfAttention, DIM, HEADS, filter=filter)
    model = Graphormer(config, lambda layer: attention(), version=version)
    model = model.double().eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    torch.nn.init.zeros_(model.bias.bond.weight[0])
    return model


def permute_nodes(nodes, bonds, order) -> Batch:
    """The same graph with its nodes and their features in another order."""
    data, order = graph(nodes, bonds, 2), torch.tensor(order)
    data.x, data.edge_index = data.x[order], order.argsort()[data.edge_index]
    return collate_graphs([ShortestPaths()(data)])


@pytest.mark.parametrize("filter", [Plain, partial(GFSA, K=2, wK=0.7)])
@settings(max_examples=20, deadline=None)
@given(shape=graphs(largest=8), data=st.data())
def test_the_order_of_the_nodes_changes_nothing(filter, shape, data) -> None:
    order = data.draw(st.permutations(range(shape[0])))
    model = build_network(filter)
    one, other = (model(permute_nodes(*shape, o)) for o in (range(shape[0]), order))
    assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", ["v1", "main"])
@pytest.mark.parametrize("filter", [Plain, partial(GFSA, K=3, wK=0.7)])
def test_padding_and_other_graphs_of_a_batch_change_nothing(filter, version) -> None:
    shapes = [(5, RING), (1, []), (8, both_ways([(0, 7, ids(1)), (3, 4, ids(2))]))]
    model = build_network(filter, version)
    together = model(make_batch(shapes))
    assert_close(together, torch.cat([model(make_batch([shape])) for shape in shapes]))


@pytest.mark.parametrize("version", ["v1", "main"])
def test_gradients_reach_every_table_but_its_padding(version) -> None:
    model = build_network(partial(GFSA, K=2), version).train()
    degree, bonded = model.embedding.in_degree.weight, (3, both_ways(RING[:2]))
    model(make_batch([(5, RING), bonded])).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0 or "pooler" in name, name
    for table in (model.embedding.atom.weight, model.bias.bond.weight, degree):
        assert (table.grad[0] == 0).all()
    model(make_batch([bonded, (1, [])])).sum().backward()  # an atom without a bond has a degree
    assert degree.grad[0].abs().min() > 0


def test_version_main_is_the_network_of_upstreams_scripts_for_pcqm4m() -> None:
    """The equations of graphormer_graph_encoder.py and models/graphormer.py, line by line."""
    model, batch = build_network(version="main"), make_batch([(5, RING), (2, [])])
    weights = dict(model.named_parameters())

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        return F.layer_norm(x, (DIM,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    x, bias = norm(model.embedding(batch), "norm"), model.bias(batch)
    for i in range(2):
        q, k, v = linear(x, f"blocks.{i}.attention.qkv").unflatten(-1, (3, HEADS, -1)).unbind(2)
        logits = torch.einsum("bnhd,bmhd->bhnm", q, k) / (DIM // HEADS) ** 0.5 + bias
        z = torch.einsum("bhnm,bmhd->bnhd", logits.softmax(-1), v).flatten(2)
        x = norm(x + linear(z, f"blocks.{i}.attention.proj"), f"blocks.{i}.norm1")
        hidden = F.gelu(linear(x, f"blocks.{i}.up"))
        x = norm(x + linear(hidden, f"blocks.{i}.down"), f"blocks.{i}.norm2")
    y = linear(norm(F.gelu(linear(x[:, 0], "head.transform")), "head.norm"), "head.output")
    assert_close(model(batch), y[:, 0])
    assert_close(model.train()(batch), y[:, 0])  # the pooler adds nothing


def test_degrees_are_those_of_both_directions() -> None:
    embedding = AtomEmbedding(1088, degrees=3, dim=DIM)
    x = embedding(make_batch([(4, [(0, 1, ids(0)), (2, 1, ids(0)), (3, 1, ids(0))])]))[0]
    node = torch.arange(4)
    atoms = embedding.atom(node + 1) + embedding.atom(node + 513)
    received, sent = (t.weight for t in (embedding.in_degree, embedding.out_degree))
    expected = atoms + received[[0, 2, 0, 0]] + sent[[1, 0, 1, 1]]  # 3 shares the last row
    assert_close(x[1:], expected)
    assert_close(x[0], embedding.virtual.weight[0])


def test_the_start_is_upstreams() -> None:
    model = GraphRegressor(64, 64).model
    assert abs(model.blocks[3].up.weight.std() / (0.02 / 12**0.5) - 1) < 0.05
    assert abs(model.embedding.atom.weight.std() / 0.02 - 1) < 0.05
    assert (model.blocks[3].up.bias == 0).all()
    assert (model.bias.bond.weight[0] == 0).all()
    main = GraphRegressor(64, 64, version="main").model
    assert abs(main.blocks[3].up.weight.std() / 0.02 - 1) < 0.05
    assert (GraphRegressor(64, 64, variant="upstream").model.bias.bond.weight[0] != 0).all()


def test_pairs_without_a_path_need_enough_rows() -> None:
    with pytest.raises(ValueError, match="a pair of atoms without a path takes row 511"):
        make_bias("upstream", distances=40)(make_batch([(2, [])], "upstream"))
    released = GraphRegressor(1088, 1024, dim=6, num_heads=3, num_layers=1, variant="upstream")
    with pytest.raises(UserError, match="variant corrected gives such pairs a row of their own"):
        released(make_batch([(2, [])], "upstream"))
    with pytest.raises(UserError, match="dict is no Batch"):
        released({})


@pytest.mark.parametrize(("name", "value", "sentence"), [
    ("hops", None, "what ShortestPaths adds .*without 'hops'"),
    ("edge_attr", torch.ones(10, dtype=int), r"edge_attr \(20,\) of int64 must be ids \(rows, col"),
    ("x", torch.rand(5, 1), "x .* of float32 must be ids"),
    ("x", torch.tensor([[0]] * 5), r"in column c from 1 \+ 512 c on"),
    ("edge_attr", torch.ones(10, 1, dtype=int), r"in column c from 2 \+ 512 c on"),
    ("edge_attr", torch.full((5, 1), 2), "a row for each column of edge_index"),
    ("y", torch.zeros(1, 2), "y must be one number, got 4 for 2 graphs"),
    ("y", 1.5, "an id in x is data.atom_rows or more"),
])  # fmt: skip
def test_graphs_of_another_form_are_named(name, value, sentence) -> None:
    one = ShortestPaths()(graph(5, RING)).update({name: value})
    with pytest.raises(UserError, match=sentence):
        GraphRegressor(4, 4, num_layers=1)(collate_graphs([one, one]))
