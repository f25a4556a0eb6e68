"""The bases against SciPy, the printed eq. 24, and the parameters that have no recursion."""

import numpy as np
import pytest
import torch
from attention_core.filters.polynomial import recurrence_steps
from attention_core.operators import evaluate_polynomial
from scipy.special import eval_chebyt, eval_jacobi, eval_legendre

ORDER = 10
X = np.linspace(-1, 1, 21)


def terms(basis: str, K: int = ORDER, **ab: float) -> np.ndarray:
    """T_0 .. T_K at X, one row each."""
    x, one = torch.from_numpy(X), torch.ones(len(X)).double()
    weights = torch.eye(K + 1).double().unsqueeze(-1)  # K + 1 polynomials at once
    theta = [weights[:, k] for k in range(K + 1)]
    steps = recurrence_steps(basis, K, **ab)
    return evaluate_polynomial(steps, theta, lambda v: x * v, one).numpy()


@pytest.mark.parametrize("a", [-0.5, 0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("b", [-2.25, -1.75, -1.25, -1.0, -0.5, 0.0, 0.2, 1.0, 2.0])
def test_jacobi_is_scipys(a, b):
    expected = np.stack([eval_jacobi(k, a, b, X) for k in range(ORDER + 1)])
    np.testing.assert_allclose(terms("jacobi", a=a, b=b), expected, rtol=1e-10, atol=1e-10)


def test_chebyshev_and_legendre():
    at_one = eval_jacobi(np.arange(ORDER + 1), -0.5, -0.5, 1.0)
    expected = np.stack([eval_chebyt(k, X) for k in range(ORDER + 1)]) * at_one[:, None]
    np.testing.assert_allclose(terms("chebyshev"), expected, atol=1e-12)
    np.testing.assert_allclose(terms("chebyshev"), terms("jacobi", a=-0.5, b=-0.5))
    expected = np.stack([eval_legendre(k, X) for k in range(ORDER + 1)])
    np.testing.assert_allclose(terms("legendre"), expected, atol=1e-12)
    np.testing.assert_allclose(terms("monomial"), X ** np.arange(ORDER + 1)[:, None], atol=1e-12)


def singular(a: float, b: float, K: int) -> bool:
    return a + b in {-k for k in range(2, K + 1)} | {2 - 2 * k for k in range(2, K + 1)}


@pytest.mark.parametrize("K", [2, 3, 5, 8])
def test_refuses_exactly_the_singular_parameters(K):
    for total in np.arange(-17, 3, 0.5):
        a, b = 1.5, total - 1.5
        if singular(a, b, K):
            with pytest.raises(ValueError, match="singular"):
                recurrence_steps("jacobi", K, a, b)
        else:
            assert np.isfinite(recurrence_steps("jacobi", K, a, b)).all()
    for K, a, b in ((5, 1.1, -5.1), (1, 1.0, -3.0)):  # rounding; T_1 is constant
        with pytest.raises(ValueError, match="singular"):
            recurrence_steps("jacobi", K, a, b)
