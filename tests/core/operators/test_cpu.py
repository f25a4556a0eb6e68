"""Maps that a CPU forms: equal to the literal map for all masks, and fused where they must be."""

from functools import partial
from itertools import chain

import pytest
import torch
from attention_core import GFSA, CenteredAttention, Plain, Polynomial, SelfAttention, Softmax
from attention_core.operators import _cpu, apply_polynomial, evaluate_polynomial
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core import reference
from tests.core.cases import FORBIDDEN, MASKS, B, D, H, N, gradients, qkv

P = 0.3
LOWEST = torch.finfo(torch.float64).min
STEPS = {
    "gfsa": [(1.0, 0.0, 0.0), (2.0, -1.0, 0.0)],
    "general": [(1.2, -0.4, 0.0), (1.5, 0.3, 0.5), (-0.7, 0.0, 0.9), (2.0, -1.0, -0.3)],
}
all_steps = pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)


def random_weights(steps):
    return [torch.randn(H, 1, 1).double().requires_grad_() for _ in range(len(steps) + 1)]


def random_pairs():
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
    "pairs": lambda: {"mask": random_pairs()},
    "pairs of all samples": lambda: {"mask": random_pairs()[0, 0]},
    "keys of all samples": lambda: {"mask": random_pairs()[:1, :, :1]},
    "queries": lambda: {"mask": random_pairs()[:, :, :, :1]},
    "causal padding": lambda: {"mask": random_pairs()[:, :1, :1], "is_causal": True},
    "infinite": lambda: {"mask": FORBIDDEN["infinite"](random_pairs())},
    "learned": lambda: {"mask": learned_bias(B, H, N, N)},
    "learned, one sample": lambda: {"mask": learned_bias(1, 1, N, N)},
    "learned, no samples": lambda: {"mask": learned_bias(H, N, N)},
    "learned keys": lambda: {"mask": learned_bias(B, 1, 1, N)},
    "learned, causal": lambda: {"mask": learned_bias(1, H, N, N), "is_causal": True},
    "learned, -inf": lambda: {"mask": learned_bias(B, H, N, N, forbidden=-torch.inf)},
    "learned, lowest": lambda: {"mask": learned_bias(B, H, N, N, forbidden=LOWEST)},
}
all_maps = pytest.mark.parametrize("kind", MAPS)


def build_maps(q, k, dropout=0.0, **options):
    """Return a map, and its literal matrix without the entries that the next call will drop."""
    A, dense = Softmax(q, k, dropout=dropout, **options), reference.softmax_map(q, k, **options)
    if not dropout:
        return A, dense
    threshold = round(dropout * 65536)
    state = torch.get_rng_state()
    dropout_mask = _cpu.draw_dropout_mask(dense.shape, threshold)
    torch.set_rng_state(state)
    return A, dense * dropout_mask / (1 - threshold / 65536)


def reference_polynomial(dense, v, theta, steps):
    return evaluate_polynomial(steps, theta, dense.__matmul__, v)


def is_formed(y):
    return any("FormedPolynomial" in name for name in list_nodes(y.grad_fn))


def list_nodes(node, depth=4):
    below = (list_nodes(n, depth - 1) for n, _ in node.next_functions if n and depth)
    return [node.name(), *chain.from_iterable(below)]


def assert_same(ours, expected, leaves, **tolerance):
    tolerance = tolerance or {"rtol": 1e-12, "atol": 1e-12}
    leaves = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    assert_close(ours, expected, **tolerance)
    assert_close(*gradients(leaves, ours, expected), **tolerance)


@all_maps
@all_steps
@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("block", [1, 2**18])
def test_a_polynomial_is_that_of_the_literal_map(kind, steps, dropout, block, monkeypatch):
    monkeypatch.setattr(_cpu, "BLOCK_NUMEL", block)
    (q, k, v), theta, options = qkv(), random_weights(steps), MAPS[kind]()
    A, dense = build_maps(q, k, dropout, **options)
    y = apply_polynomial(A, v, theta, steps)
    assert is_formed(y)
    expected = reference_polynomial(dense, v, theta, steps)
    assert_same(y, expected, [q, k, v, *theta, options.get("mask")])


@all_maps
@pytest.mark.parametrize("dropout", [0.0, P])
def test_an_application_is_that_of_the_literal_map(kind, dropout):
    (q, k, v), options = qkv(), MAPS[kind]()
    A, dense = build_maps(q, k, dropout, **options)
    y = A @ v
    assert is_formed(y) == (dropout > 0 or A.is_learned)
    assert_same(y, dense @ v, [q, k, v, options.get("mask")])


@pytest.mark.parametrize(("n", "m"), [(7, 11), (11, 7), (1, 13)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_dropped_map_need_not_be_square(n, m, is_causal):
    q, k, v = (
        torch.randn(B, H, *size).double().requires_grad_() for size in ((n, 4), (m, 4), (m, 6))
    )
    A, dense = build_maps(q, k, P, is_causal=is_causal)
    assert_same(A @ v, dense @ v, [q, k, v])


@all_steps
def test_operands_of_a_joint_projection(steps):
    qkv_ = torch.randn(B, N, 3, H, D).double().requires_grad_()
    (q, k, v), theta = qkv_.permute(2, 0, 3, 1, 4), random_weights(steps)
    A, dense = build_maps(q, k)
    y = apply_polynomial(A, v, theta, steps)
    assert y.transpose(1, 2).is_contiguous()  # joining the heads copies nothing
    assert_same(y, reference_polynomial(dense, v, theta, steps), [qkv_, *theta])


@all_steps
@pytest.mark.parametrize("needed", range(5))
def test_one_operand_alone_needs_a_gradient(steps, needed):
    weight = torch.ones(H, 1, 1).double()
    leaves = [t.detach() for t in (*qkv(), learned_bias(1, H, N, N), weight)]
    leaves[needed].requires_grad_()
    q, k, v, bias, weight = leaves
    theta = [weight] * (len(steps) + 1)
    A, dense = build_maps(q, k, mask=bias)
    y = apply_polynomial(A, v, theta, steps)
    assert_same(y, reference_polynomial(dense, v, theta, steps), [leaves[needed]])


@all_steps
def test_first_and_second_derivatives(steps):
    valid = torch.rand(B, 1, 5, 5) < 0.6
    valid[0, 0, 3], valid[1] = False, False

    def run(q, k, v, bias, *theta):
        bias = bias.masked_fill(~valid, -torch.inf)
        return apply_polynomial(Softmax(q, k, bias), v, theta, steps)

    operands = [torch.randn(B, H, 5, 3).double().requires_grad_() for _ in range(3)]
    inputs = [*operands, learned_bias(H, 5, 5), *random_weights(steps)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@all_steps
def test_single_precision(steps):
    (q, k, v), theta = qkv(), random_weights(steps)
    exact = apply_polynomial(Softmax(q, k), v, theta, steps)
    rough = apply_polynomial(Softmax(q.float(), k.float()), v.float(), theta, steps)
    assert_close(rough.float(), exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("filter", [Plain(H), CenteredAttention(H), GFSA(H, wK=0.3)])
def test_dropout_draws_anew_and_a_seed_repeats_it(filter):
    (q, k, v), filter = qkv(), filter.double()
    A = Softmax(q, k, dropout=P)
    torch.manual_seed(5)
    first, second = filter(A, v), filter(A, v)
    torch.manual_seed(5)
    assert torch.equal(filter(A, v), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_of_dropped_entries(p):
    n = 256
    q = torch.zeros(1, 4, n, 1)
    A = Softmax(q, q, dropout=p)
    entries = (A @ A.eye()).flatten()
    assert_close(entries.unique(), torch.tensor([0, 1 / n / (1 - round(p * 65536) / 65536)]))
    for lane in entries.view(-1, 4).mT:  # one random number makes four entries
        sigma = (p * (1 - p) / len(lane)) ** 0.5
        assert abs((lane == 0).double().mean() - p) < 5 * sigma
    assert (entries.view(4, -1)[0] != entries.view(4, -1)[1]).any()


@pytest.mark.parametrize("p", [1.0, 1 - 1e-6])
def test_all_entries_dropped_is_zero(p):
    q, k, v = qkv()
    y = Softmax(q, k, dropout=p) @ v
    assert not y.any()
    assert not any(d.any() for d in torch.autograd.grad(y.sum(), [q, k, v]))


def test_evaluation_never_drops():
    layer = SelfAttention(H * D, H, filter=GFSA, dropout=0.5)
    torch.nn.init.normal_(layer.filter.wK)
    x = torch.randn(2, 9, H * D)
    dropping, y = layer(x), layer.eval()(x)
    assert torch.equal(layer(x), y)
    assert not torch.equal(dropping, y)


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
def test_maps_of_more_entries_are_fused(dropout, learned, monkeypatch):
    (q, k, v), filter = qkv(), Polynomial(H, K=4).double()
    A = Softmax(q, k, learned_bias(H, N, N, forbidden=LOWEST) if learned else None, dropout=dropout)
    formed = filter(A, v)
    monkeypatch.setattr(_cpu, "MAX_MAP_NUMEL", B * H * N * N - 1)
    fused = filter(A, v)
    assert is_formed(formed)
    assert not is_formed(fused)
    assert dropout or torch.allclose(formed, fused)


@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("learned", [False, True])
def test_half_precision_and_autocast_are_fused(dropout, learned):
    q, k, v = (t.detach().float().requires_grad_() for t in qkv())
    bias, filter = torch.randn(B, H, N, N).requires_grad_(learned), GFSA(H, wK=0.4)
    exact = filter(Softmax(q, k, bias), v)
    half = filter(Softmax(q.bfloat16(), k.bfloat16(), bias, dropout=dropout), v.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = filter(Softmax(q, k, bias, dropout=dropout), v)
    assert half.dtype == torch.bfloat16
    for y in (half, mixed):
        assert not is_formed(y)
        grads = torch.autograd.grad(y.float().sum(), [q, k, v, filter.wK])
        assert all(d.isfinite().all() for d in grads)
        assert dropout or (y - exact).norm() < 0.03 * exact.norm()


def test_a_backward_pass_under_autocast():
    q, k, v = (t.detach().float().requires_grad_() for t in qkv())
    y = GFSA(H, wK=0.4)(Softmax(q, k), v)
    expected = torch.autograd.grad(y.sum(), [q, k, v], retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(torch.autograd.grad(y.sum(), [q, k, v]), expected)


@pytest.mark.parametrize("shape", [(H, 11, 1), (11, D), (B, H, 1, 1)])
def test_weights_that_differ_by_token_or_sample_are_fused(shape):
    q, k, v = qkv(n=11)
    theta = [torch.randn(shape).double().requires_grad_() for _ in range(3)]
    A, dense = build_maps(q, k)
    y = apply_polynomial(A, v, theta, STEPS["gfsa"])
    assert not is_formed(y)
    expected = reference_polynomial(dense, v, theta, STEPS["gfsa"])
    assert_same(y, expected, [q, k, v, *theta], rtol=1e-9, atol=1e-10)


def test_a_mask_of_another_size_is_refused():
    q, k, v = qkv()
    for dropout in (0.0, P):
        with pytest.raises(ValueError, match="got a mask of shape"):
            Softmax(q, k, torch.ones(N, N + 1, dtype=torch.bool), dropout=dropout) @ v


def test_maps_without_queries_or_keys():
    q, k, v = qkv()
    assert (Softmax(q[:, :, :0], k, dropout=P) @ v).shape == (B, H, 0, D)
    assert not (Softmax(q, k[:, :, :0], dropout=P) @ v[:, :, :0]).any()


@pytest.mark.parametrize("dropout", [0.0, P])
def test_functional_transforms_see_fused_calls(dropout):
    q, k, v = (t.detach() for t in qkv())
    filter, A = GFSA(H, wK=0.4).double(), Softmax(q, k, dropout=dropout)
    slope = torch.func.grad(lambda u: filter(A, u).sum())(v)
    assert slope.isfinite().all()
    if not dropout:
        several = torch.randn(2, *v.shape).double()
        mapped = torch.vmap(lambda u: filter(A, u))(several)
        assert_close(mapped, torch.stack([filter(A, u) for u in several]))


@pytest.mark.parametrize("filter", [Plain, GFSA])
def test_a_compiler_sees_fused_calls(filter):
    torch.compiler.reset()  # earlier tests may have reached the recompilation limit
    layer = SelfAttention(H * D, H, filter=filter, dropout=P)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(1, 9, H * D)
    y = compiled(x)
    assert not is_formed(y)
    assert not torch.equal(compiled(x), y)


@pytest.mark.parametrize("filter", [Plain, partial(GFSA, wK=0.4)])
def test_a_trace_sees_fused_calls(filter):
    layer = SelfAttention(H * D, H, filter=filter).eval()
    traced = torch.jit.trace(layer, torch.randn(2, 9, H * D), check_trace=False)
    x = torch.randn(2, 9, H * D)
    assert_close(traced(x), layer(x))
    assert not torch.equal(traced(x), traced(2 * x))
