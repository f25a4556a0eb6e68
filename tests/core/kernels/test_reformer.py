"""Hashing attention against sorting by hand: buckets, chunks and rounds, token by token."""

import pytest
import torch
from attention_core.kernels import Reformer, reformer
from torch.testing import assert_close

from tests.core.cases import gradients
from tests.core.kernels.cases import MASKS, B, D, H, N, gaps, operands

CHUNK = 3


def kernel(**options) -> Reformer:
    return Reformer(H * D, H, **{"chunk": CHUNK, "redraw": "never"} | options).double()


def attend(net: Reformer, q: torch.Tensor, mask: torch.Tensor | None = None):
    """The operator; neither the keys' projection nor the layer's input has a part in it."""
    nothing = torch.full((), torch.nan)
    return net(q, nothing, nothing, mask)


def bucket(net, token, rotation, counted):
    """Return the index of the rotated axis, or of its opposite, that is nearest to a token."""
    size = 2
    while size * 2 <= min(2 * counted / net.chunk, net.max_buckets):
        size *= 2
    axes = [float(token @ axis) for axis in rotation[: (net.buckets or size) // 2]]
    along = axes + [-a for a in axes]
    return along.index(max(along))


def chunks(net, q, rotation, valid):
    """One round: the tokens by bucket, padding last, cut."""
    real = [i for i, is_real in enumerate(valid) if is_real]
    counted = len(real) if net.ring == "sample" else len(valid)
    order = sorted(real, key=lambda i: bucket(net, q[i], rotation, counted))
    if net.ring == "joined":
        order += [i for i in range(len(valid)) if not valid[i]]
    return [order[start : start + net.chunk] for start in range(0, len(order), net.chunk)]


def keys_of(net, rounds):
    """For each round, the keys of each token: its chunk and the one before, with repetitions."""
    ring = [chunk for chunks in rounds for chunk in chunks]
    for r, chunks in enumerate(rounds):
        keys = {}
        for c, chunk in enumerate(chunks):
            before = chunks[c - 1] if net.ring == "sample" else ring[r * len(chunks) + c - 1]
            keys |= dict.fromkeys(chunk, chunk + (before if len(chunks) > 1 else []))
        yield keys


def literal(net, rotations, q, v, valid):
    """Every sample, head and token."""
    out = torch.zeros_like(v)
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        rounds = [chunks(net, q[b, h].detach(), rotation, valid[b]) for rotation in rotations[h]]
        keys = list(keys_of(net, rounds))
        for i in range(q.shape[2]):
            if valid[b, i]:
                out[b, h, i] = row(net, q[b, h], v[b, h], i, [round[i] for round in keys], valid[b])
    return out


def row(net, q, v, i, rounds, valid):
    """Compute the output of token i; each round has the sum of its exponentials as its weight."""
    scale = D**-0.5 if net.scale_logits else 1.0
    reads, masses = [], []
    for keys in rounds:
        keys = [j for j in keys if valid[j]]
        units = [q[j] / ((q[j] ** 2).mean() + 1e-6).sqrt() / D**0.5 for j in keys]
        scores = [scale * (q[i] @ unit) for unit in units]
        scores = [q.new_tensor(-1e5) if j == i else s for j, s in zip(keys, scores, strict=True)]
        weights = torch.stack(scores).softmax(0)
        reads.append(sum(w * v[j] for w, j in zip(weights, keys, strict=True)))
        masses.append(torch.stack(scores).logsumexp(0))
    return sum(m * y for m, y in zip(torch.stack(masses).softmax(0), reads, strict=True))


OPTIONS = [{}, {"hashes": 1}, {"hashes": 3, "scale_logits": True}, {"ring": "joined"}]
OPTIONS += [{"buckets": 6}, {"max_buckets": 4}, {"chunk": 64}, {"chunk": 64, "ring": "joined"}]
OPTIONS += [{"chunk": 1}]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_sorting_by_hand(options, mask):
    net, (q, *_, v), mask = kernel(**options), operands(), MASKS[mask]()
    valid = torch.ones(B, N, dtype=torch.bool) if mask is None else mask
    A = attend(net, q, mask)
    ours, theirs = A @ v, literal(net, net.rotations, q, v, valid)
    assert_close(ours, theirs)
    assert_close(A.dense() @ v, ours)
    assert_close(*gradients([q, v], ours, theirs))


@pytest.mark.parametrize("columns", [1, 3])
def test_rotations_are_worked_on_a_few_columns_at_a_time(columns, monkeypatch):
    net, (q, *_) = kernel(hashes=3), operands()
    whole = attend(net, q, gaps()).chunks.order
    monkeypatch.setattr(reformer, "ROTATION_CHUNK", columns)
    assert torch.equal(attend(net, q, gaps()).chunks.order, whole)


@pytest.mark.parametrize("n", [1, 2, CHUNK, CHUNK + 1])
@pytest.mark.parametrize("ring", ["sample", "joined"])
def test_short_sequences(n, ring):
    net, (q, *_, v) = kernel(ring=ring), operands(n)
    valid = torch.ones(B, n, dtype=torch.bool)
    assert_close(attend(net, q) @ v, literal(net, net.rotations, q, v, valid))


def test_each_operator_is_one_map_whose_rotations_were_drawn_once():
    (q, *_, v), net = operands(), kernel(redraw="training", buckets=6).train()
    A = attend(net, q)
    assert_close(A @ v, A @ v, rtol=0, atol=0)
    torch.manual_seed(1)
    y = attend(net, q) @ v
    torch.manual_seed(1)
    drawn = torch.randn_like(net.rotations)
    assert_close(y, literal(net, drawn, q, v, torch.ones(B, N, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("redraw", "train", "evaluate"),
    [("training", True, False), ("always", True, True), ("never", False, False)],
)
def test_when_rotations_are_drawn(redraw, train, evaluate):
    (q, *_, v), net = operands(), kernel(redraw=redraw)
    for mode, fresh in ((True, train), (False, evaluate)):
        net.train(mode)
        assert torch.equal(attend(net, q) @ v, attend(net, q) @ v) != fresh
