"""Jacobi's basis against SciPy, and the parameters that have no recursion."""

import numpy as np
import pytest
import torch
from attention_core.filters.polynomial import recurrence_steps
from attention_core.operators import evaluate_polynomial
from scipy.special import eval_jacobi

ORDER = 10
X = np.linspace(-1, 1, 21)


@pytest.mark.parametrize("a", [-0.5, 0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("b", [-2.25, -1.75, -1.25, -1.0, -0.5, 0.0, 0.2, 1.0, 2.0])
def test_jacobi_is_scipys(a, b):
    expected = np.stack([eval_jacobi(k, a, b, X) for k in range(ORDER + 1)])
    x, one = torch.from_numpy(X), torch.ones(len(X)).double()
    theta = torch.eye(ORDER + 1).double().unsqueeze(-1).unbind(1)  # every polynomial at once
    steps = recurrence_steps("jacobi", ORDER, a, b)
    found = evaluate_polynomial(steps, theta, lambda v: x * v, one).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("K", [2, 3, 5, 8])
def test_refuses_exactly_the_singular_parameters(K):
    for total in np.arange(-17, 3, 0.5):
        a, b = 1.5, total - 1.5
        if total in {-k for k in range(2, K + 1)} | {2 - 2 * k for k in range(2, K + 1)}:
            with pytest.raises(ValueError, match="singular"):
                recurrence_steps("jacobi", K, a, b)
        else:
            assert np.isfinite(recurrence_steps("jacobi", K, a, b)).all()
    for K, a, b in ((5, 1.1, -5.1), (1, 1.0, -3.0)):  # rounding; T_1 is constant
        with pytest.raises(ValueError, match="singular"):
            recurrence_steps("jacobi", K, a, b)
