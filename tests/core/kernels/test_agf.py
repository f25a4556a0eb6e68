"""The attentive graph filter against its token-by-token equations, and its penalty by hand."""

import pytest
import torch
from attention_core import AGF
from attention_core.filters.polynomial import recurrence_steps
from attention_core.kernels import orthogonality_penalty
from attention_core.kernels.pointwise_polynomial import pointwise_polynomial
from attention_core.operators import evaluate_polynomial
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import draw_weights, gradients
from tests.core.kernels.cases import B, D, H, N, operands

K = 4
BASES = [("jacobi", 1.0, 0.2), ("jacobi", 1.5, -1.5), ("chebyshev", -0.5, -0.5)]
BASES += [("legendre", 0.0, 0.0), ("monomial", 0.0, 0.0)]


def kernel(**options) -> AGF:
    """An AGF in float64 whose every weight is random."""
    return draw_weights(AGF(H * D, H, **{"K": K} | options))


def literal(agf, q, k, x, v, bases):
    """Every sample and head by reference.agf, the singular values token by token."""
    theta = list(agf.theta.tanh())
    theta = [torch.ones(()).double(), *theta] if agf.pin_theta0 else theta
    weight, bias = agf.sigma.weight.unflatten(0, (H, D)), agf.sigma.bias.unflatten(0, (H, D))
    out = torch.zeros(B, H, N, D).double()
    for i in range(B):
        for h in range(H):
            s = torch.stack([torch.sigmoid(weight[h] @ token + bias[h]) for token in x[i]])
            out[i, h] = reference.agf(q[i, h], k[i, h], s, theta, bases, v[i, h])
    return out


@pytest.mark.parametrize("pin_theta0", [True, False])
@pytest.mark.parametrize(("basis", "a", "b"), BASES)
def test_equals_the_equations_token_by_token(basis, a, b, pin_theta0):
    agf = kernel(basis=basis, a=a, b=b, pin_theta0=pin_theta0)
    q, k, x, v = operands()
    bases = [reference.monomials(basis, i, a, b) for i in range(K + 1)]
    ours, theirs = agf(q, k, x) @ v, literal(agf, q, k, x, v, bases)
    assert_close(ours, theirs)
    assert_close(*gradients([q, k, x, v, *agf.parameters()], ours, theirs))


def test_penalty_by_hand():
    U = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # U^T U - I = diag(1, 0)
    V = torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]])  # V^T V - I = [[-.5, .25], [.25, -.5]]
    pair = U[None, None], V[None, None]
    assert_close(orthogonality_penalty(*pair), torch.tensor(2.5 / 4))
    assert_close(orthogonality_penalty(*pair, "paper"), torch.tensor(2.5 / 9))
    heads = torch.stack([U, torch.eye(3, 2)])[None], torch.stack([V, torch.eye(3, 2)])[None]
    assert_close(orthogonality_penalty(*heads), torch.tensor(2.5 / 8))


def test_a_padded_penalty_has_the_rows_of_U_of_padding():
    """As on LRA, where V alone is masked; the U term of 2 d^2 tokens is then constant."""
    q, k, x, _ = operands()
    mask = torch.arange(N).expand(B, -1) < torch.tensor([N, 3])[:, None]
    padded, released = (
        kernel(singular_values="ones", gamma=3.0, penalty_variant=name)
        for name in ("padded", "released")
    )
    A = padded(q, k, x, mask)
    eye, V = torch.eye(D).double(), k.masked_fill(~mask[:, None, :, None], -torch.inf).softmax(-2)
    gram = [(t.mT @ t - eye).abs().mean() for t in (q.softmax(-1), V)]
    assert_close(padded.penalty(A), 3 * sum(gram))
    assert padded.penalty(A) != released.penalty(A)
    assert_close(padded.penalty(padded(q, k, x)), released.penalty(released(q, k, x)))


def test_ablations_and_the_start():
    q, k, x, v = operands()
    plain = q.softmax(-1) @ (k.softmax(-2).mT @ v)
    ones = kernel(singular_values="ones")
    learned = AGF(H * D, H, singular_values="learned").double()
    assert not list(ones.parameters())
    assert_close(ones(q, k, x) @ v, plain)
    for starts in (learned, AGF(H * D, H, K).double()):
        assert_close(starts(q, k, x) @ v, plain)
    assert not (AGF(H * D, H, K, pin_theta0=False).double()(q, k, x) @ v).any()
    torch.nn.init.normal_(learned.singular)
    g = learned.singular.view(H, 1, D)
    assert_close(learned(q, k, x) @ v, (q.softmax(-1) * g) @ (k.softmax(-2).mT @ v))
    generated = kernel(singular_values="generated")
    s = generated.sigma(x).sigmoid().view(B, N, H, D).transpose(1, 2)
    assert_close(generated(q, k, x) @ v, (q.softmax(-1) * s) @ (k.softmax(-2).mT @ v))


@pytest.mark.parametrize("rho", ["sigmoid", "tanh", "none"])
def test_other_activations(rho):
    q, k, x, v = operands()
    activate = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "none": lambda t: t}[rho]
    y = kernel(rho=rho, singular_values="ones")(q, k, x) @ v
    assert_close(y, activate(q) @ (activate(k).mT @ v))


@pytest.mark.parametrize(("basis", "a", "b"), [("jacobi", 2.0, -1.0), ("monomial", 0.0, 0.0)])
def test_a_response_and_its_gradients_are_those_of_the_recurrence(basis, a, b, monkeypatch):
    monkeypatch.setattr("attention_core.kernels.pointwise_polynomial.CACHED", 8)
    steps = recurrence_steps(basis, 5, a, b)
    s = torch.rand(3, 2**12 + 5).double().requires_grad_()  # many blocks and a bit
    theta = torch.randn(6).double().requires_grad_()
    ours = pointwise_polynomial(s, theta, steps)
    theirs = evaluate_polynomial(steps, list(theta), lambda term: s * term, s.new_ones(()))
    assert_close(ours, theirs)
    assert_close(*gradients([s, theta], ours, theirs))
    half = theta.detach().bfloat16().requires_grad_()  # its gradient is a sum of the blocks' too
    (sums,) = torch.autograd.grad(pointwise_polynomial(s, half, steps).sum(), half)
    assert_close(sums.double(), torch.autograd.grad(ours.sum(), theta)[0], rtol=0.01, atol=0)
