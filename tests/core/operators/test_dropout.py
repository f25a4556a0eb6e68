"""Dropout by blocks: the identity tells which entries it drops, the rest is the literal map."""

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, Plain, Polynomial, SelfAttention, Softmax
from attention_core.operators import apply_polynomial, dropped, evaluate_polynomial, expansion
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core import reference
from tests.core.cases import FORBIDDEN, MASKS, B, D, H, N, qkv
from tests.core.test_budget import DIM, HEADS, Largest, largest

P = 0.3
STAYS = 1 - round(P * 65536) / 65536


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of so many entries."""
    return lambda entries: monkeypatch.setattr(dropped, "CACHED", entries)


@pytest.fixture
def never_formed(monkeypatch):
    monkeypatch.setattr(expansion, "FORMED", 0)


def _constant(options):
    return {name: o.detach() if name == "mask" else o for name, o in options.items()}


def _masks():
    valid = torch.rand(B, H, N, N) < 0.6
    valid[0, :, 7], valid[1, 1] = False, False  # fully masked rows, and a map
    return {name: _constant(make()) for name, make in MASKS.items()} | {
        "pairs": {"mask": valid},
        "shared": {"mask": valid[0, 0]},
        "heads": {"mask": valid[:1, :, :1]},
        "queries": {"mask": valid[:, :, :, :1]},
        "causal padding": {"mask": valid[:, :1, :1], "is_causal": True},
        "infinite": {"mask": FORBIDDEN["infinite"](valid)},
    }


def _compare(A, v, expected, by_blocks=True):
    """Forward and gradients in q, k, v; `expected` is the literal map without dropout."""
    kept = (A @ A.eye()).detach() != 0
    y, literal = A @ v, (expected * kept / STAYS) @ v
    assert ("Attend" in y.grad_fn.name()) == by_blocks
    assert_close(y, literal)
    g, leaves = torch.randn_like(y), [A.q, A.k, v]
    for ours, theirs in zip(
        torch.autograd.grad(y, leaves, g), torch.autograd.grad(literal, leaves, g), strict=True
    ):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", _masks())
@pytest.mark.parametrize("entries", [1, 5 * N, 2 * N * N, H * N * N])
def test_dropout_by_blocks_is_the_literal_dropped_map(kind, entries, blocks):
    blocks(entries)
    (q, k, v), options = qkv(), _masks()[kind]
    A = Softmax(q, k, dropout=P, **options).seeded()
    _compare(A, v, reference.softmax_map(q, k, **options))


@pytest.mark.parametrize("kind", _masks())
def test_a_short_map_is_formed_and_dropped(kind):
    (q, k, v), options = qkv(), _masks()[kind]
    A = Softmax(q, k, dropout=P, **options).seeded()
    _compare(A, v, reference.softmax_map(q, k, **options), by_blocks=False)


@pytest.mark.parametrize("kind", _masks())
def test_autocast_drops_from_a_map_of_half_precision(kind, blocks):
    blocks(5 * N)  # which autocast does not heed
    (q, k, v), options = qkv(), _masks()[kind]
    with torch.autocast("cpu", torch.bfloat16):
        A = Softmax(*(t.bfloat16() for t in (q, k)), dropout=P, **options).seeded()
        y, kept = A @ v.bfloat16(), A @ A.eye() != 0
    assert y.dtype == torch.bfloat16
    literal = (reference.softmax_map(q, k, **options) * kept / STAYS) @ v
    g = torch.randn_like(literal)
    ours, theirs = (torch.autograd.grad(out, [q, k, v], g.to(out.dtype)) for out in (y, literal))
    tolerance = {"rtol": 3e-2, "atol": 3e-2}
    assert_close([y, *ours], [literal, *theirs], check_dtype=False, **tolerance)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(7, 11), (11, 7), (1, 13)])
@pytest.mark.parametrize("entries", [4 * 7, 2 * 3 * 77])
def test_a_map_need_not_be_square(n, m, is_causal, entries, blocks):
    blocks(min(entries, 5 * 3 * n * m - 1))
    q, k, v = (
        torch.randn(5, 3, size, width).double().requires_grad_()
        for size, width in ((n, 4), (m, 4), (m, 6))
    )
    valid = torch.rand(5, 1, 1, m) < 0.7
    past = torch.ones(n, m, dtype=torch.bool).tril()
    expected = reference.softmax_map(q, k, past if is_causal else None)
    _compare(Softmax(q, k, is_causal=is_causal, dropout=P).seeded(), v, expected)
    expected = reference.softmax_map(q, k, valid & past if is_causal else valid)
    _compare(Softmax(q, k, valid, is_causal, dropout=P).seeded(), v, expected)


def test_operands_of_a_joint_projection(blocks):
    blocks(5 * N)
    q, k, v = torch.randn(B, N, 3, H, D).double().requires_grad_().permute(2, 0, 3, 1, 4)
    _compare(Softmax(q, k, dropout=P).seeded(), v, reference.softmax_map(q, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_drops_the_same_entries(dtype, blocks):
    blocks(5 * N)
    (q, k, v), outcomes = qkv(), []
    for width in (dtype, torch.float64):
        leaves = [t.detach().to(dtype).to(width).requires_grad_() for t in (q, k, v)]
        torch.manual_seed(1)
        y = Softmax(*leaves[:2], dropout=P) @ leaves[2]
        outcomes.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
        assert y.dtype == width
    assert_close(*outcomes, check_dtype=False, **_tolerance(dtype))


def _tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}


def test_the_expectation_is_the_map_without_dropout(blocks):
    blocks(5 * N)
    q, k, v = (t.detach() for t in qkv())
    A, draws = Softmax(q, k, dropout=P), 400
    mean = torch.stack([A @ v for _ in range(draws)]).mean(0)
    # an entry is A / STAYS or 0: its variance is A^2 (1 - STAYS) / STAYS
    variance = A.dense().square() @ v.square() * (1 - STAYS) / STAYS
    z = (mean - A.dense() @ v) / (variance / draws).sqrt()
    assert z.abs().max() < 5  # of 1110 numbers: once in 1500 seeds
    assert 0.85 < z.std() < 1.15


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_of_dropped_entries(p, blocks):
    blocks(2**14)
    n = 256
    q = torch.zeros(1, 4, n, 1)
    A = Softmax(q, q, dropout=p)
    entries = (A @ A.eye()).flatten()
    stays = 1 - round(p * 65536) / 65536
    assert_close(entries.unique(), torch.tensor([0, 1 / n / stays]))
    for lane in entries.view(-1, 4).mT:  # a random number makes four entries
        sigma = (p * (1 - p) / len(lane)) ** 0.5
        assert abs((lane == 0).double().mean() - p) < 5 * sigma
    assert (entries.view(4, -1)[0] != entries.view(4, -1)[1]).any()


@pytest.mark.parametrize("filter", [GFSA(H, wK=0.3), Polynomial(H, K=4)])
def test_a_polynomial_drops_one_map_that_is_never_formed(filter, blocks, never_formed):
    blocks(5 * N)
    (q, k, v), theta = qkv(), [torch.randn(H, 1, 1).double().requires_grad_() for _ in range(4)]
    steps = [(1.2, -0.4, 0.0), (1.5, 0.3, 0.5), (-0.7, 0.0, 0.9)]
    A, leaves = Softmax(q, k, dropout=P), [q, k, v, *theta]
    torch.manual_seed(1)
    y = apply_polynomial(A, v, theta, steps)
    torch.manual_seed(1)
    kept = (A @ A.eye()).detach() != 0  # the same seed, the first that is drawn
    map = reference.softmax_map(q, k) * kept / STAYS
    literal, g = evaluate_polynomial(steps, theta, lambda u: map @ u, v), torch.randn_like(v)
    assert_close(y, literal)
    assert_close(torch.autograd.grad(y, leaves, g), torch.autograd.grad(literal, leaves, g))
    filter, (y, again) = filter.double(), (filter(A, v), filter(A, v))
    assert not torch.equal(y, again)


def test_each_application_draws_its_own_and_a_seed_repeats_it(blocks):
    blocks(5 * N)
    q, k, v = qkv()
    A = Softmax(q, k, dropout=P)
    torch.manual_seed(5)
    first, second = A @ v, A @ v
    torch.manual_seed(5)
    assert torch.equal(A @ v, first)
    assert torch.equal(A @ v, second)
    assert not torch.equal(first, second)
    fixed = A.seeded()
    assert torch.equal(fixed @ v, fixed @ v)
    assert not torch.equal(fixed @ v, A.seeded() @ v)
    assert A.seed is None


def test_checkpointing_drops_the_same_entries(blocks):
    blocks(5 * N)
    leaves, grads = list(qkv()), []
    for run in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        torch.manual_seed(5)
        y = run(lambda q, k, v: Softmax(q, k, dropout=P) @ v, *leaves)
        torch.manual_seed(6)
        grads.append(torch.autograd.grad(y.square().sum(), leaves))
    assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("filter", [None, GFSA])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": True}], ids=str)
def test_memory_does_not_grow_with_the_square(filter, options, never_formed, blocks):
    blocks(2**12)
    layer = SelfAttention(DIM, HEADS, dropout=P, **({"filter": filter} if filter else {}))
    seen = []
    for n in (256, 512):
        mask = {"mask": torch.arange(n)[None] < n - 5} if "mask" in options else {}
        seen.append(largest(layer, n, **(options | mask)))
    assert seen[1] == 2 * seen[0] < 512**2 / 8


def test_a_block_is_the_largest_tensor_as_things_stand():
    q, k, v = (torch.randn(1, 2, 1024, 3, requires_grad=True) for _ in range(3))
    with Largest() as seen:
        (Softmax(q, k, dropout=P) @ v).sum().backward()
    assert seen.numel == dropped.CACHED


def test_no_dropout_is_the_fused_call(blocks):
    blocks(1)
    (q, k, v), valid = qkv(), MASKS["padding"]()["mask"]
    fused = F.scaled_dot_product_attention(q, k, v, valid)
    assert torch.equal(Softmax(q, k, valid) @ v, fused)
    assert torch.equal(Softmax(q, k, valid).seeded() @ v, fused)


def test_evaluation_never_drops(blocks, never_formed):
    blocks(1)
    for filter in (GFSA, Polynomial):
        layer = SelfAttention(DIM, HEADS, filter=filter, dropout=0.5)
        torch.nn.init.normal_(next(layer.filter.parameters()))
        x = torch.randn(2, 9, DIM)
        dropping = layer(x)
        layer.eval()
        y = layer(x)
        assert torch.equal(layer(x), y)
        assert not torch.equal(dropping, y)
        layer.dropout = 0.0
        assert torch.equal(layer.train()(x), y)


@pytest.mark.parametrize("p", [1.0, 1 - 1e-6])
def test_all_or_nearly_all_entries_dropped_is_zero(p, blocks):
    blocks(1)
    q, k, v = qkv()
    y = Softmax(q, k, dropout=p) @ v
    assert not y.any()
    assert not any(d.any() for d in torch.autograd.grad(y.sum(), [q, k, v]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_formed_map_of_half_precision_has_logits_of_single(dtype, autocast):
    q, k, _ = (4 * t.detach().to(dtype) for t in qkv())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        A = Softmax(q, k, dropout=P).formed()
    literal = reference.softmax_map(q.double(), k.double()) * (A != 0) / STAYS
    assert A.dtype == dtype
    assert_close(A.double(), literal, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_a_rate_too_low_for_its_bits_is_left_to_the_fused_call():
    q, k, v = qkv()
    A = Softmax(q, k, dropout=1e-6)
    assert not A.is_dropped
    assert_close(A @ v, reference.softmax_map(q, k) @ v, rtol=1e-4, atol=1e-4)


def test_what_is_not_dropped_by_blocks(blocks):
    q, k, v = qkv()
    blocks(B * H * N * N)  # one block
    assert "Attend" not in (Softmax(q, k, dropout=P) @ v).grad_fn.name()
    blocks(B * H * N * N - 1)
    assert "Attend" in (Softmax(q, k, dropout=P) @ v).grad_fn.name()
    learned = torch.randn(N, N).double().requires_grad_()
    y = Softmax(q, k, learned, dropout=P) @ v
    assert torch.autograd.grad(y.sum(), learned)[0].any()
    assert "Attend" not in (Softmax(q[0], k[0], dropout=P) @ v[0]).grad_fn.name()
    with torch.autocast("cpu", torch.bfloat16):
        y = Softmax(q.float(), k.float(), dropout=P) @ v.float()
    assert y.dtype == torch.bfloat16
    with pytest.raises(RuntimeError):
        Softmax(q, k, torch.ones(N, N + 1, dtype=torch.bool), dropout=P) @ v
    empty = Softmax(q[:, :, :0], k, dropout=P) @ v
    assert empty.shape == (B, H, 0, D)
    assert not (Softmax(q, k[:, :, :0], dropout=P) @ v[:, :, :0]).any()


def test_functional_transforms_see_through_dropout(blocks):
    blocks(1)
    q, k, v = (t.detach() for t in qkv())
    A = Softmax(q, k, dropout=P)
    slope = torch.func.grad(lambda u: (A @ u).sum())(v)  # A is linear in v: its column sums
    sums = A.dense().sum(-2)[..., None].expand_as(v)
    assert_close(slope, sums, rtol=1.0, atol=0.5)
    assert not torch.equal(slope, sums)


@pytest.mark.parametrize("filter", [Plain, GFSA])
def test_a_compiler_sees_the_fused_call_alone(filter, blocks, never_formed):
    blocks(1)
    torch.compiler.reset()  # earlier tests may have reached the recompilation limit
    layer = SelfAttention(DIM, HEADS, filter=filter, dropout=P)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(1, 9, DIM)
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: shapes.append(t.shape) or t, lambda t: t
    ):
        y = compiled(x)
    assert (1, HEADS, 9, 9) in shapes  # the map, which the fused call forms
    assert not torch.equal(compiled(x), y)
