"""The map of a learned bias on a CPU: literal, forward and gradients, in the bias too."""

import pytest
import torch
from attention_core import GFSA, CenteredAttention, Plain, Polynomial, Softmax
from attention_core.operators import dropped
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import B, D, H, N, qkv

FILTERS = {
    "plain": lambda: Plain(H),
    "gfsa": lambda: GFSA(H, K=4, learn=("w0", "w1", "wK"), w0=0.3, w1=0.8, wK=0.4),
    "fixed": lambda: GFSA(H, K=2, wK=0.4),
    "polynomial": lambda: Polynomial(H, K=4),
    "centered": lambda: CenteredAttention(H),
}
LOWEST = torch.finfo(torch.float64).min
SHAPES = [(B, H, N, N), (1, H, N, N), (B, 1, N, N), (H, N, N), (N, N), (B, 1, 1, N)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _bias(shape, forbidden=None):
    bias = torch.randn(shape).double()
    if forbidden is not None:
        bias[..., 3:] = forbidden  # keys that are padding
        bias[0, :, :5] = forbidden  # rows that may attend to nothing
    return bias.requires_grad_()


def _literal(q, k, bias):
    """Rows that may attend to nothing are zero."""
    open = bias > LOWEST
    logits = q @ k.mT / D**0.5 + bias.masked_fill(~open, 0)
    weights = logits.sub(logits.detach().amax(-1, keepdim=True)).exp() * open
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def _compare(A, v, expected, filter, leaves):
    y, literal = filter(A, v), filter(expected, v)
    assert_close(y, literal)
    g, leaves = torch.randn_like(y), [*leaves, *(w for w in filter.parameters() if w.requires_grad)]
    ours, theirs = (torch.autograd.grad(out, leaves, g, retain_graph=True) for out in (y, literal))
    assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_learned_bias_is_the_literal_map(name, shape):
    (q, k, v), bias, filter = qkv(), _bias(shape), FILTERS[name]().double()
    assert_close(_literal(q, k, bias), reference.softmax_map(q, k, bias))
    A = Softmax(q, k, bias)
    assert A.is_learned
    _compare(A, v, _literal(q, k, bias), filter, [q, k, v, bias])


@pytest.mark.parametrize("name", ["plain", "gfsa", "centered"])
@pytest.mark.parametrize("forbidden", [-torch.inf, LOWEST])
def test_what_a_bias_forbids(name, forbidden):
    (q, k, v), bias, filter = qkv(), _bias((B, H, N, N), forbidden), FILTERS[name]().double()
    A, expected = Softmax(q, k, bias), _literal(q, k, bias)
    if name == "centered":  # whose mean is that of the keys that a query may attend to
        y = filter(A, v)
        assert_close(y, filter(Softmax(q, k, bias.detach()), v))
        (gradient,) = torch.autograd.grad(y.sum(), bias)
        assert gradient.isfinite().all()
    else:
        _compare(A, v, expected, filter, [q, k, v, bias])


@pytest.mark.parametrize("name", ["plain", "gfsa", "polynomial"])
def test_dropout_takes_entries_of_the_one_map(name):
    (q, k, v), bias, filter = qkv(), _bias((1, H, N, N)), FILTERS[name]().double()
    A = Softmax(q, k, bias, dropout=0.3).seeded()
    stays = A.formed().detach() != 0
    rate = round(0.3 * dropped.LANES) / dropped.LANES
    assert 0.5 < stays.double().mean() < 0.9
    _compare(A, v, _literal(q, k, bias) * stays / (1 - rate), filter, [q, k, v, bias])


def test_everything_is_dropped_at_rate_one():
    (q, k, v), bias = qkv(), _bias((H, N, N))
    assert (Softmax(q, k, bias, dropout=1.0) @ v == 0).all()


def test_a_bias_that_does_not_learn_stays_fused():
    (q, k, v), bias = qkv(), _bias((H, N, N))
    with torch.no_grad():
        assert_close(Softmax(q, k, bias.detach()) @ v, Softmax(q, k, bias) @ v)
    assert not Softmax(q, k, bias.detach()).is_learned


def test_functional_transforms_see_through_a_formed_map():
    (q, k, v), filter = qkv(), GFSA(H, wK=0.4).double()

    def loss(values):
        return filter(Softmax(q.detach(), k.detach(), dropout=0.3), values).sum()

    assert torch.func.grad(loss)(v.detach()).isfinite().all()


@pytest.mark.parametrize("learned", [True, False])
def test_half_precision_of_autocast_goes_back_through_a_formed_map(learned):
    q, k, v = (t.detach().float().requires_grad_() for t in qkv())
    filter = GFSA(H, wK=0.4)
    bias, project = torch.randn(B, H, N, N).requires_grad_(learned), torch.nn.Linear(D, D)
    with torch.autocast("cpu", torch.bfloat16):
        y = filter(Softmax(project(q), project(k), bias, dropout=0.2), project(v))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(t.grad.isfinite().all() for t in (q, k, v, filter.wK))
    assert v.grad.abs().sum() > 0
