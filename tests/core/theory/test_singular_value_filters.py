"""AGF's theorem 2, its equations in the singular value domain, and its costs."""

import pytest
import torch
from attention_core import LowRank, spectral, theory
from attention_core.filters.polynomial import recurrence_steps
from hypothesis import strategies as st
from scipy.special import eval_jacobi, roots_jacobi
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.core.theory.draws import draw, normal, sizes, softmax_map

POINTS = torch.linspace(-1, 1, 31, dtype=torch.float64)
GRID = [(1.0, 0.2), (2.0, -2.0), (1.5, 1.0), (-0.5, -0.5), (0.0, 0.0), (1.0, -1.5)]


def test_the_spectral_norm_of_random_maps():
    A = normal(0, 2000, 12, 12).softmax(-1)
    bound = theory.bound_spectral_norm(A)
    assert bound.holds.all()
    circulant = torch.stack([A[0, 0].roll(k) for k in range(12)])
    assert_close(theory.bound_spectral_norm(circulant).measured, torch.ones(()).double())
    norms = bound.measured
    assert 1.03 < norms.mean() < 1.06  # 1.046 in 4000 draws
    assert norms.max() > 1.12
    assert theory.bound_spectral_norm(torch.tensor([[0.9, 0.1]]).expand(2, 2)).measured > 1.28


@draw(n=sizes, K=st.integers(1, 8))
def test_theorem_2_non_negative_coefficients_prefer_the_largest_value(seed, n, K):
    sigma = spectral.singular_values(softmax_map(seed, n))
    theta = normal(seed + 1, K + 1).abs()
    theta = (theta / theta.sum()).tolist()
    ratios = theory.measure_gain_ratios(sigma, theta)
    assert (ratios < 1).all()
    gains = [sum(w * value**k for k, w in enumerate(theta)) for value in sigma.tolist()]
    assert_close(ratios, torch.tensor(gains[1:]).double() / gains[0])


def test_theorem_2_that_filter_is_not_low_pass_in_the_sense_of_theorem_1():
    A, X = softmax_map(3, 6, 3.0), normal(4, 6, 2) + 2
    U, sigma, Vh = torch.linalg.svd(A)
    H = U @ torch.diag(0.5 + 0.5 * sigma) @ Vh
    assert theory.trace_hfc_lfc(lambda x: A @ x, X, 300)[-1] < 1e-6
    assert theory.trace_hfc_lfc(lambda x: H @ x, X, 300)[-1] > 0.1


@draw(n=sizes, share=st.floats(0.05, 0.9))
def test_theorem_2_alternating_coefficients_are_high_pass_where_a_series_converges(seed, n, share):
    sigma = spectral.singular_values(softmax_map(seed, n))
    high_pass = theory.measure_high_pass_ratios(sigma, share / sigma[0].item(), K=400)
    assert high_pass.converges
    assert (high_pass.limit > 1).all()
    assert_close(high_pass.ratios, high_pass.limit)
    normalized = spectral.singular_values(theory.normalize_symmetrically(normal(seed, n, n)))
    assert theory.measure_high_pass_ratios(normalized * (1 - 1e-12), 0.95, K=400).converges


def test_theorem_2_fails_where_alpha_times_the_norm_exceeds_1_and_for_a_small_order():
    sigma = spectral.singular_values(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).double())
    assert sigma[0] > 1.2
    high_pass = theory.measure_high_pass_ratios(sigma, 0.9, K=200)
    assert not high_pass.converges
    assert high_pass.limit > 1
    assert high_pass.ratios < 1e-6  # a filter for the largest value
    sigma = torch.tensor([1.0, 0.9]).double()
    assert theory.measure_high_pass_ratios(sigma, 0.9, K=2).ratios < 1
    assert theory.measure_high_pass_ratios(sigma, 0.9, K=3).ratios > 1


@pytest.mark.parametrize(("a", "b"), [
    (a, k / 2) for a in (0.0, 1.0, 1.5, 2.0) for k in range(-4, 5)
    if (a, k) != (0.0, -4)  # where the recursion is singular
])  # fmt: skip
def test_theorem_2_for_the_jacobi_basis_on_the_grid_of_the_paper(a, b):
    sigma = torch.linspace(1, 0, 50, dtype=torch.float64)
    steps = recurrence_steps("jacobi", 10, a, b)
    for k in range(1, 11):
        assert (theory.measure_gain_ratios(sigma, [0.0] * k + [1.0], steps[:k]) < 1 + 1e-12).all()
    if b in (0.0, 1.0):  # not for a small a
        steps = recurrence_steps("jacobi", 2, -0.5, b)
        assert theory.measure_gain_ratios(sigma, [0.0, 0.0, 1.0], steps).max() > 1.1


@pytest.mark.parametrize(("a", "b"), GRID[:1] + GRID[2:5])
def test_the_jacobi_basis_is_orthogonal_on_its_interval_and_not_where_it_is_used(a, b):
    K = 5
    nodes, weights = roots_jacobi(K + 1, a, b)
    values = torch.stack([torch.tensor(eval_jacobi(k, a, b, nodes)) for k in range(K + 1)])
    gram = values * torch.tensor(weights) @ values.T
    assert_close(gram, torch.diag(gram.diagonal()), atol=1e-12, rtol=0)
    steps = recurrence_steps("jacobi", K, a, b)
    ours = [
        theory.measure_gain_ratios(
            torch.cat([torch.ones(1), torch.tensor(nodes)]), [0.0] * k + [1.0], steps[:k]
        ) for k in range(1, K + 1)
    ]  # fmt: skip
    for k, ratios in enumerate(ours, start=1):
        assert_close(ratios, (values[k] / eval_jacobi(k, a, b, 1.0)).abs())
    inside = torch.tensor(nodes) > 0  # as a sigmoid's values are
    half = values[:, inside] * torch.tensor(weights)[inside] @ values[:, inside].T
    assert (half - torch.diag(half.diagonal())).abs().max() > 1e-2


@pytest.mark.parametrize(("a", "b"), GRID)
def test_eq_24_is_misprinted(a, b):
    K, c = 7, a + b
    steps = recurrence_steps("jacobi", K, a, b)
    older, newer = torch.ones_like(POINTS), steps[0][0] * POINTS + steps[0][1]
    for k in range(2, K + 1):
        slope = (2 * k + c) * (2 * k + c + 1) / (2 * k * (k + c))  # as printed
        older, newer = newer, (slope * POINTS + steps[k - 1][1]) * newer - steps[k - 1][2] * older
        assert (newer - torch.tensor(eval_jacobi(k, a, b, POINTS.numpy()))).abs().max() > 0.1


@draw(n=sizes, alpha=st.integers(1, 4))
def test_a_power_of_singular_values_is_that_of_a_symmetric_semidefinite_map(seed, n, alpha):
    def gap(M):
        U, sigma, Vh = torch.linalg.svd(M)
        power = U @ torch.diag(sigma**alpha) @ Vh
        return torch.linalg.matrix_norm(power - torch.linalg.matrix_power(M, alpha))

    A = softmax_map(seed, n)
    S = A @ A.T
    assert gap(S) < 1e-9 * torch.linalg.matrix_norm(S) ** alpha
    if n > 2 and alpha > 1:
        assert gap(A) > 1e-6


@draw(n=st.integers(3, 9), d=st.integers(1, 2))
def test_eq_11_in_its_printed_sizes_cannot_vanish(seed, n, d):
    eye = torch.eye(n).double()
    Q = torch.linalg.qr(normal(seed, n, d)).Q
    for V in (normal(seed, n, d).softmax(0), Q):
        distance = torch.linalg.matrix_norm(V @ V.T - eye)
        assert distance >= (n - d) ** 0.5 - 1e-12
    assert distance.item() == pytest.approx((n - d) ** 0.5)  # V^T V = I, and yet
    assert_close(Q.T @ Q, torch.eye(d).double())


def test_the_costs_are_those_of_the_matrix_products():
    n, d = 37, 5
    U, s, V, v = (normal(i, 1, 1, n, d) for i in range(4))
    A = softmax_map(4, n)[None, None]

    def count(function) -> int:
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops() // 2  # a multiplication and an addition each

    assert count(lambda: LowRank(U * s, V) @ v) == 2 * n * d * d
    assert count(lambda: (U @ V.mT).softmax(-1) @ v) == 2 * n * n * d
    assert count(lambda: (U @ V.mT, A @ (A @ v))) == 3 * n * n * d
    assert count(lambda: (U @ V.mT, (A + A @ A) @ v)) == 2 * n * n * d + n**3
