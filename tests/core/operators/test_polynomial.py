"""Polynomials of a map: equal to the literal equation in every form that computes them."""

from functools import partial
from itertools import chain

import pytest
import torch
from attention_core import GFSA, Plain, Polynomial, ReAttention, SelfAttention, Softmax
from attention_core.operators import apply_polynomial, evaluate_polynomial, recomputed
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core import reference
from tests.core.cases import MASKS, B, D, H, N, draw_kept, gradients, qkv

P = 0.3
BASES = {
    "monomial": None,
    "general": [(1.2, -0.4, 0.0), (1.5, 0.3, 0.5), (-0.7, 0.0, 0.9), (2.0, -1.0, -0.3)],
}


def draw_coefficients(steps):
    num = 4 if steps is None else len(steps) + 1
    return [torch.randn(H, 1, 1).double().requires_grad_() for _ in range(num)]


def draw_pairs():
    valid = torch.rand(B, H, N, N) < 0.6
    valid[0, :, 7], valid[1, 1] = False, False  # fully masked rows, and a fully masked map
    return valid


def learned_bias(*shape, forbidden=None):
    bias = torch.randn(shape).double()
    if forbidden is not None:
        bias[..., 3:] = forbidden  # keys that are padding
        bias[..., :5, :] = forbidden  # rows that may attend to nothing
    return bias.requires_grad_()


MAPS = MASKS | {
    "pairs": lambda: {"mask": draw_pairs()},
    "pairs of all samples": lambda: {"mask": draw_pairs()[0, 0]},
    "causal padding": lambda: {"mask": draw_pairs()[:, :1, :1], "is_causal": True},
    "learned": lambda: {"mask": learned_bias(B, H, N, N)},
    "learned, no samples": lambda: {"mask": learned_bias(H, N, N)},
    "learned keys": lambda: {"mask": learned_bias(B, 1, 1, N)},
    "learned, causal": lambda: {"mask": learned_bias(1, H, N, N), "is_causal": True},
    "learned, -inf": lambda: {"mask": learned_bias(B, H, N, N, forbidden=-torch.inf)},
    "learned, lowest": lambda: {
        "mask": learned_bias(B, H, N, N, forbidden=torch.finfo(torch.float64).min)
    },
}


def dropped_map(q, k, p, options, once=True):
    """Return the literal map without the entries that the next call will drop."""
    A = reference.softmax_map(q, k, **options)
    return A * draw_kept(p, once=once) / (1 - round(p * 2**16) / 2**16) if p else A


def literal_polynomial(A, v, coefficients, steps):
    steps = [(1.0, 0.0, 0.0)] * (len(coefficients) - 1) if steps is None else steps
    return evaluate_polynomial(steps, coefficients, A.__matmul__, v)


def is_recomputed(y):
    return any("Recomputed" in name for name in list_nodes(y.grad_fn))


def list_nodes(node, depth=4):
    below = (list_nodes(n, depth - 1) for n, _ in node.next_functions if n and depth)
    return [node.name(), *chain.from_iterable(below)]


def assert_same(ours, expected, leaves):
    leaves = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert_close(*gradients(leaves, ours, expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("steps", BASES.values(), ids=BASES)
@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("chunk", [1, 2**18])
def test_a_polynomial_is_that_of_the_literal_map(kind, steps, dropout, chunk, monkeypatch):
    monkeypatch.setattr(recomputed, "CHUNK_NUMEL", chunk)
    (q, k, v), coefficients, options = qkv(), draw_coefficients(steps), MAPS[kind]()
    A = dropped_map(q, k, dropout, options, once=False)
    y = apply_polynomial(Softmax(q, k, dropout=dropout, **options), v, coefficients, steps)
    assert is_recomputed(y) == (kind != "causal" or dropout > 0)
    leaves = [q, k, v, *coefficients, options.get("mask")]
    assert_same(y, literal_polynomial(A, v, coefficients, steps), leaves)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("chunk", [5 * N, 2**18])  # a few rows at a time, or some samples
def test_an_application_is_that_of_the_literal_map(kind, dropout, chunk, monkeypatch):
    monkeypatch.setattr(recomputed, "CHUNK_NUMEL", chunk)
    (q, k, v), options = qkv(), MAPS[kind]()
    A = dropped_map(q, k, dropout, options)
    y = Softmax(q, k, dropout=dropout, **options) @ v
    assert_same(y, A @ v, [q, k, v, options.get("mask")])


@pytest.mark.parametrize(("n", "m"), [(7, 11), (1, 13), (0, 5), (5, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_dropped_map_need_not_be_square(n, m, is_causal):
    q, k, v = (torch.randn(B, H, size, 4).double().requires_grad_() for size in (n, m, m))
    y = Softmax(q, k, None, is_causal, dropout=P) @ v
    assert y.shape == (B, H, n, 4)
    assert all(d.isfinite().all() for d in torch.autograd.grad(y.sum(), [q, k, v]))


@pytest.mark.parametrize("chunk", [15, 2**18])
@pytest.mark.parametrize("steps", [*BASES.values(), [(1.0, 0.0, 0.0)]], ids=[*BASES, "once"])
def test_first_and_second_derivatives(steps, chunk, monkeypatch):
    monkeypatch.setattr(recomputed, "CHUNK_NUMEL", chunk)
    valid = torch.rand(B, 1, 5, 5) < 0.6
    valid[0, 0, 3], valid[1] = False, False

    def run(dropout, q, k, v, bias, *coefficients):
        torch.manual_seed(5)
        A = Softmax(q, k, bias.masked_fill(~valid, -torch.inf), dropout=dropout)
        if steps is not None and len(steps) == 1:
            return A @ v
        return apply_polynomial(A, v, coefficients, steps)

    operands = [torch.randn(B, H, 5, 3).double().requires_grad_() for _ in range(3)]
    inputs = [*operands, learned_bias(H, 5, 5)]
    inputs += [] if steps is not None and len(steps) == 1 else draw_coefficients(steps)
    for dropout in (0.0, P):
        assert torch.autograd.gradcheck(partial(run, dropout), inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(partial(run, dropout), inputs, fast_mode=True)


@pytest.mark.parametrize("needed", range(5))
def test_one_operand_alone_needs_a_gradient(needed, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *n: t.new_zeros(*n).fill_(torch.nan))
    weight = torch.ones(H, 1, 1).double()
    leaves = [t.detach() for t in (*qkv(), learned_bias(1, H, N, N), weight)]
    leaves[needed].requires_grad_()
    q, k, v, bias, weight = leaves
    y = apply_polynomial(Softmax(q, k, bias), v, [weight] * 3)
    A = reference.softmax_map(q, k, bias)
    with torch.autograd.set_detect_anomaly(True):
        assert_same(y, literal_polynomial(A, v, [weight] * 3, None), [leaves[needed]])


def test_operands_of_a_joint_projection():
    qkv_ = torch.randn(B, N, 3, H, D).double().requires_grad_()
    (q, k, v), coefficients = qkv_.permute(2, 0, 3, 1, 4), draw_coefficients(None)
    y = apply_polynomial(Softmax(q, k), v, coefficients)
    assert y.transpose(1, 2).is_contiguous()  # joining the heads copies nothing
    assert apply_polynomial(Softmax(q, k), v, coefficients).mul_(2).requires_grad
    expected = literal_polynomial(reference.softmax_map(q, k), v, coefficients, None)
    assert_same(y, expected, [qkv_, *coefficients])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_rate_of_dropped_entries(p):
    kept = draw_kept(p, heads=4, n=256, batch=1)
    for lane in kept.view(-1, 4).mT:  # one random number makes four entries
        assert abs((1 - lane).mean() - p) <= 5 * (p * (1 - p) / len(lane)) ** 0.5


def test_checkpointing_drops_the_same_entries():
    leaves, grads, filter = list(qkv()), [], GFSA(H, wK=0.3).double()
    for run in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        torch.manual_seed(5)
        y = run(lambda q, k, v: filter(Softmax(q, k, dropout=P), v), *leaves)
        torch.manual_seed(6)
        grads.append(torch.autograd.grad(y.square().sum(), leaves))
    assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("learned", [False, True])
def test_half_precision_and_autocast_are_fused(dropout, learned):
    q, k, v = (t.detach().float().requires_grad_() for t in qkv())
    bias, filter = torch.randn(B, H, N, N).requires_grad_(learned), GFSA(H, wK=0.4)
    exact = filter(Softmax(q, k, bias), v)
    half = filter(Softmax(q.bfloat16(), k.bfloat16(), bias, dropout=dropout), v.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = filter(Softmax(q, k, bias, dropout=dropout), v)
        slope = torch.autograd.grad(exact.sum(), v, retain_graph=True)
    assert_close(slope, torch.autograd.grad(exact.sum(), v))
    assert half.dtype == torch.bfloat16
    for y in (half, mixed):
        assert not is_recomputed(y)
        grads = torch.autograd.grad(y.float().sum(), [q, k, v, filter.wK])
        assert all(d.isfinite().all() for d in grads)
        assert dropout or (y - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("dropout", [0.0, P])
def test_functional_transforms_see_fused_calls(dropout):
    q, k, v = (t.detach() for t in qkv())
    filter, A = GFSA(H, wK=0.4).double(), Softmax(q, k, dropout=dropout)
    assert torch.func.grad(lambda u: filter(A, u).sum())(v).isfinite().all()
    if not dropout:
        several = torch.randn(2, *v.shape).double()
        mapped = torch.vmap(lambda u: filter(A, u))(several)
        assert_close(mapped, torch.stack([filter(A, u) for u in several]))


@pytest.mark.parametrize("filter", [Plain, GFSA, partial(Polynomial, K=4), ReAttention])
def test_a_compiler_a_trace_and_a_tensor_without_values_see_fused_calls(filter):
    torch.compiler.reset()  # earlier tests may have reached the recompilation limit
    layer, x = SelfAttention(H * D, H, filter=filter, dropout=P), torch.randn(1, 9, H * D)
    assert not is_recomputed(torch.compile(layer, backend="eager", fullgraph=True)(x))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(torch.randn(2, 9, H * D), torch.rand(2, 9) > 0.5).shape == (2, 9, H * D)
    traced = torch.jit.trace(layer.eval(), torch.randn(2, 9, H * D), check_trace=False)
    assert_close(traced(x), layer(x))
