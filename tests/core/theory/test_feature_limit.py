"""Features of a repeated layer: its limit, rank and frequencies, with the cases left out."""

import pytest
import torch
from attention_core import spectral, theory
from hypothesis import assume
from torch import Tensor, tensor
from torch.testing import assert_close

from tests.core.theory.draws import draw, normal, sizes, softmax_map


def weights(seed: int, H: list[float]) -> Tensor:
    """Return W = H^T with these eigenvalues and random eigenvectors, not far from orthogonal."""
    d = len(H)
    V = torch.eye(d).double() + 0.2 * normal(seed, d, d)
    return (V @ torch.diag(tensor(H).double()) @ torch.linalg.inv(V)).T


def symmetric_map(n: int, values: list[float]) -> Tensor:
    """Return a symmetric matrix of rows that sum to 1, with these other eigenvalues."""
    basis = torch.linalg.qr(torch.cat([torch.ones(n, 1).double(), normal(n, n, n - 1)], 1)).Q
    return basis @ torch.diag(tensor([1.0, *values]).double()) @ basis.T


def trace(X: Tensor, A: Tensor, W: Tensor, steps: int) -> Tensor:
    return theory.trace_hfc_lfc(lambda x: x + A @ x @ W, X, steps)


def iterate(X: Tensor, A: Tensor, W: Tensor, steps: int) -> Tensor:
    """Repeat a layer, and divide by the growth of its dominating eigenvalue at each step."""
    growth = (1 + torch.outer(torch.linalg.eigvals(W), torch.linalg.eigvals(A))).abs().max()
    for _ in range(steps):
        X = (X + A @ X @ W) / growth
    return X


@draw(n=sizes, d=sizes)
def test_the_update_is_the_kronecker_matrix_on_stacked_columns(seed, n, d):
    A, X, W = softmax_map(seed, n), normal(seed + 1, n, d), normal(seed + 2, d, d)
    matrix = torch.eye(n * d).double() + torch.kron(W.T.contiguous(), A)
    stacked = matrix @ X.T.reshape(-1)
    assert_close(X + A @ X @ W, stacked.reshape(d, n).T)


@draw(n=sizes)
def test_theorem_3_4_the_features_converge_to_the_dominating_terms(seed, n):
    A, X = softmax_map(seed, n), normal(seed + 1, n, 3)
    assume(theory.measure_attention_spectrum(A).second < 0.8)
    W = weights(seed, [0.9, 0.4, -0.3])
    found = iterate(X, A, W, 300)
    assert_close(found, theory.predict_features(X, A, W, 300), atol=1e-9, rtol=1e-6)
    assert torch.linalg.matrix_rank(found, rtol=1e-6) == 1
    assert_close(found, found[:1].expand_as(found), atol=1e-9, rtol=1e-6)  # eq. 4: equal tokens


def test_theorem_3_4_at_the_smallest_eigenvalue_leaves_tokens_distinct():
    A, X = symmetric_map(4, [0.8, 0.5, 0.1]), normal(1, 4, 2)
    W = weights(0, [-0.3, -0.9])
    found = iterate(X, A, W, 400)
    assert_close(found, theory.predict_features(X, A, W, 400), atol=1e-9, rtol=1e-6)
    assert torch.linalg.matrix_rank(found, rtol=1e-6) == 1  # eq. 5
    assert (found[0] - found[1]).norm() > 1e-2 * found.norm()


def test_theorem_3_4_all_terms_are_the_features_at_any_depth_and_some_have_no_limit():
    A, X, W = softmax_map(5, 4, 2.0), normal(6, 4, 3), normal(7, 3, 3)
    found = iterate(X, A, W, 7)
    assert_close(found, theory.predict_features(X, A, W, 7, tolerance=1.0))
    rotation = tensor([[0.3, -0.8], [0.8, 0.3]]).double()
    limits = [iterate(X[:, :2], A, rotation, steps) for steps in (200, 201)]
    assert (limits[0] - limits[1]).norm() > 0.1 * limits[0].norm()
    assert_close(
        limits[0], theory.predict_features(X[:, :2], A, rotation, 200)
    )  # and only matrices that are diagonalizable have a limit
    W = tensor([[0.5, 1.0], [0.0, 0.5]]).double()
    found = iterate(normal(1, 4, 2), softmax_map(2, 4), W, 100)
    assert found.norm() > 10  # grows with L beside the quotient


@draw()
def test_corollary_1_the_rank_of_the_limit(seed):
    X = normal(seed, 4, 3)
    ties = symmetric_map(4, [-0.5, -0.5, 0.2])
    for W, rank in (
        (weights(seed, [-4.0, 0.5, 0.1]), 1),  # -3 at 1, and 3 at -0.5 twice: one j
        (weights(seed, [2.0, 2.0, -4.0]), 2),  # j = 0, 1 at 1, and j = 2 at all
        (weights(seed, [-4.0, -4.0, -4.0]), 3),
    ):
        assert theory.measure_feature_rank(X, ties, W, 1e-6) == (rank, rank)
    W = weights(seed, [0.9, 0.5, 0.1])
    assert theory.measure_feature_rank(X, softmax_map(seed, 4), W)[1] == 1


def test_corollary_1_fails_for_the_features_themselves():
    X, A = normal(0, 3, 2), softmax_map(1, 3)
    for _ in range(8):
        X = X + A @ X @ tensor([[0.4, 0.0], [0.0, 0.3]]).double()
    assert torch.linalg.matrix_rank(X) == 2  # full at a depth where the quotient nears rank one


@draw(12, n=sizes)
def test_theorem_3_5_case_1_smooths(seed, n):
    A, W = softmax_map(seed, n), weights(seed, [0.9, 0.4, -0.3])
    assume(theory.measure_attention_spectrum(A).second < 0.8)  # 200 layers suffice
    assert theory.classify_update(torch.linalg.eigvals(W), torch.linalg.eigvals(A)) == 1
    assert trace(normal(seed + 1, n, 3), A, W, 200)[-1] < 1e-6


@draw(12, n=sizes)
def test_theorem_3_5_case_2_does_not_smooth(seed, n):
    A, W = softmax_map(seed, n), weights(seed, [-0.9, -0.4, -0.3])
    assert theory.classify_update(torch.linalg.eigvals(W), torch.linalg.eigvals(A)) == 2
    assert trace(normal(seed + 1, n, 3), A, W, 200)[-50:].max() > 1e-2


@draw(12, n=sizes)
def test_theorem_3_5_case_3_zeros_of_h_tie_and_do_not_smooth(seed, n):
    A, W = softmax_map(seed, n), torch.diag(tensor([-0.9, 0.0]).double())
    A = 0.3 * A + 0.7 * torch.eye(n).double()  # all real parts above 0.4
    cases = theory.classify_update(torch.diagonal(W), torch.linalg.eigvals(A))
    X = normal(seed + 1, n, 2)
    ratios = trace(X, A, W, 150)
    assert cases == 3
    assert_close(ratios[-1], spectral.hfc_lfc(X[:, 1:]))  # the channel of the zero stays


def test_theorem_3_5_has_exceptions_equal_tokens_no_limit_and_complex_maps():
    A, W = softmax_map(0, 4), weights(0, [-0.9, -0.4])
    ratios = trace(tensor([[1.0, 2.0]]).double().expand(4, 2), A, W, 5)
    assert (ratios < 1e-12).all()  # case 2, and nothing but a mean
    A = tensor([[0.2, 0.8], [0.7, 0.3]], dtype=torch.float64)  # eigenvalues 1 and -0.5
    W = tensor([[-4.0]]).double()
    assert theory.classify_update(tensor([-4.0]).double(), torch.linalg.eigvals(A)) == 3
    ratios = trace(normal(1, 2, 1), A, W, 60)
    assert ratios[-1] != pytest.approx(ratios[-2].item(), rel=1e-2)
    assert_close(ratios[-1], ratios[-3])
    A = tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]).double()
    W = tensor([[-1.0]]).double()
    assert theory.classify_update(tensor([-1.0]).double(), torch.linalg.eigvals(A)) == 2
    assert trace(normal(0, 3, 1), A, W, 50)[-1] > 1e6  # no DC is left at all
