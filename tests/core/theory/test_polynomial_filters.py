"""GFSA's error bound with a sharper one, and the graph filters that it contains, as identities."""

import pytest
import torch
from attention_core import GFSA, spectral, theory
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.core.theory.draws import draw, normal, scales, sizes, softmax_map

orders = st.integers(1, 12)


def row_sum_norm(A):
    return A.abs().sum(-1).max()


def expand(weights: theory.GFSAWeights) -> tuple[float, float, float]:
    """Return the coefficients of I, A and A^2."""
    K, w0, w1, wK = weights
    return w0, w1 - (K - 2) * wK, (K - 1) * wK


@draw(n=sizes, K=orders, scale=scales)
def test_theorem_3_1_and_the_sharper_bound(seed, n, K, scale):
    A = softmax_map(seed, n, scale)
    A[0] *= seed % 2  # a fully masked row
    error = row_sum_norm(torch.linalg.matrix_power(A, K) - (A + (K - 1) * (A @ A - A)))
    printed, sharp = (theory.bound_power_error(A, K, printed) for printed in (True, False))
    assert printed.upper == 2 * K
    assert printed.holds
    assert sharp.holds
    assert sharp.upper <= 2 * (K - 1)
    assert_close(sharp.measured, error)


@draw(n=sizes, K=orders, scale=scales)
def test_the_steps_of_its_proof(seed, n, K, scale):
    A = softmax_map(seed, n, scale)
    terms = [row_sum_norm(torch.linalg.matrix_power(A, k)) for k in (K, 1, 2)]
    assert terms[0] <= row_sum_norm(A) ** K + 1e-12  # eqs. 9-11
    assert_close(row_sum_norm(A), torch.ones(()).double())
    error = theory.bound_power_error(A, K).measured
    assert error <= terms[0] + terms[1] + (K - 1) * (terms[2] + terms[1]) + 1e-12  # eqs. 12-13


def test_the_approximation_is_exact_for_two_orders_and_drifts_beyond():
    A = softmax_map(3, 6, 2.0)
    for K in (1, 2):
        assert theory.bound_power_error(A, K).measured < 1e-15
    errors = [theory.bound_power_error(A, K).measured for K in (100, 200)]
    slope = row_sum_norm(A @ A - A)
    assert_close((errors[1] - errors[0]) / 100, slope)  # a straight line: it has no limit


@draw(K=st.integers(1, 9))
def test_gfsa_of_any_order_is_a_polynomial_of_order_two(seed, K):
    w0, w1, wK = normal(seed, 3).float().double().tolist()  # coefficients are stored in float32
    weights = theory.GFSAWeights(K, w0, w1, wK)
    A = softmax_map(seed, 5)[None, None]
    H = spectral.matrix(GFSA(1, **weights._asdict()).double(), A)
    g0, g1, g2 = expand(weights)
    assert_close(H, g0 * torch.eye(5).double() + g1 * A + g2 * A @ A)


@draw(K=st.integers(2, 9))
def test_reductions_are_exact(seed, K):
    A, eye = softmax_map(seed, 5), torch.eye(5).double()
    a, b, c = normal(seed, 3).tolist()

    def apply(weights):
        g0, g1, g2 = expand(weights)
        return g0 * eye + g1 * A + g2 * A @ A

    assert theory.match_polynomial((0.0, 1.0), K=1) == (1, 0.0, 1.0, 0.0)  # GCN
    assert_close(apply(theory.match_polynomial((a, b), K=1)), a * eye + b * A)
    assert_close(apply(theory.match_polynomial((a, b, c), K)), a * eye + b * A + c * A @ A)
    gread = theory.match_polynomial((0.0, 1 + c, -c), K)
    assert_close(gread.w1, 1 + c / (K - 1))
    assert_close(gread.wK, -c / (K - 1))
    assert_close(apply(gread), A + c * (A - A @ A))
    largest = 1.0 + abs(c)
    laplacian = 2 / largest * (eye - A) - eye
    chebnet = theory.match_polynomial((a + b * (2 / largest - 1), -b * 2 / largest), K=1)
    assert_close(apply(chebnet), a * eye + b * laplacian)


def test_gcn_as_printed_leaves_a_factor():
    A = softmax_map(0, 4)
    H = spectral.matrix(GFSA(1, K=1, w0=0.0, w1=1.0, wK=0.5).double(), A[None, None])[0, 0]
    assert_close(H, 1.5 * A)


@pytest.mark.parametrize("K", [2, 3, 6])
def test_gread_as_printed_needs_w1(K):
    """With w_K alone, the coefficients of A and A^2 are GREAD's at one beta, which is negative."""
    for wK in (-1.0, -0.2):
        _, g1, g2 = expand(theory.GFSAWeights(K, 0.0, 0.0, wK))
        beta = -g2
        assert abs(g1 - (1 + beta)) > 0.5
    assert theory.match_polynomial((0.0, 2.0 - K, K - 1.0), K) == (K, 0.0, 0.0, 1.0)


def test_reductions_refuse_what_gfsa_cannot_be():
    with pytest.raises(ValueError, match="up to 3 coefficients"):
        theory.match_polynomial((1.0, 1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="at least 2"):
        theory.match_polynomial((0.0, 1.5, -0.5), K=1)


@draw(n=sizes, scale=scales)
def test_a_symmetric_normalization_has_the_largest_singular_value_1(seed, n, scale):
    P = scale * normal(seed, n, n)
    S, E = theory.normalize_symmetrically(P), P.exp()
    assert_close(S, E / torch.outer(E.sum(1), E.sum(0)).sqrt(), rtol=1e-9, atol=1e-300)
    assert_close(spectral.singular_values(S)[0], torch.ones(()).double())


def test_a_softmax_map_is_no_symmetric_normalization_unless_all_degrees_are_equal():
    P = normal(1, 5, 5)
    assert (theory.normalize_symmetrically(P) - P.softmax(-1)).abs().max() > 0.01
    circulant = torch.stack([P[0].roll(k) for k in range(5)])
    assert_close(theory.normalize_symmetrically(circulant), circulant.softmax(-1))
