"""The recomputing response against the recurrence that autograd follows, across its blocks."""

from functools import partial

import pytest
import torch
from attention_core.filters.polynomial import recurrence_steps
from attention_core.kernels.pointwise_polynomial import CACHED, pointwise_polynomial
from attention_core.operators import evaluate_polynomial
from torch.testing import assert_close

from tests.core.cases import gradients


@pytest.mark.parametrize(("basis", "a", "b"), [("jacobi", 2.0, -1.0), ("monomial", 0.0, 0.0)])
def test_forward_and_gradients_are_those_of_the_recurrence(basis, a, b):
    steps = recurrence_steps(basis, 5, a, b)
    s = torch.rand(3, CACHED // 2 + 5).double().requires_grad_()  # two blocks and a bit
    theta = torch.randn(6).double().requires_grad_()
    ours = pointwise_polynomial(s, theta, steps)
    theirs = evaluate_polynomial(steps, list(theta), lambda term: s * term, s.new_ones(()))
    assert_close(ours, theirs)
    assert_close(*gradients([s, theta], ours, theirs))


def test_a_view_and_an_empty_tensor_are_taken():
    steps, theta = recurrence_steps("legendre", 2), torch.tensor([1.0, 2.0, 3.0])
    s = torch.rand(4, 3, 2)
    assert_close(pointwise_polynomial(s.mT, theta, steps), pointwise_polynomial(s, theta, steps).mT)
    assert pointwise_polynomial(s[:0], theta, steps).shape == (0, 3, 2)


def test_second_derivatives():
    s, theta = torch.rand(7).double().requires_grad_(), torch.randn(4).double().requires_grad_()
    steps = recurrence_steps("jacobi", 3, 1.0, 0.2)
    run = partial(pointwise_polynomial, steps=steps)
    assert torch.autograd.gradgradcheck(run, (s, theta))
