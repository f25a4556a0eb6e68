"""Theorem 1, its corollary, and the lemmas and remarks of AttnScale, with what they leave out."""

import pytest
import torch
from attention_core import spectral, theory
from hypothesis import assume
from torch.testing import assert_close

from tests.core import reference
from tests.core.theory.draws import center, draw, normal, scales, sizes, softmax_map


def stationary(A):
    """Return the limit of the rows of A^t, as the left eigenvector of the eigenvalue 1."""
    values, vectors = torch.linalg.eig(A.T)
    pi = vectors[:, values.abs().argmax()].real
    return pi / pi.sum()


def dobrushin(A):
    return max((a - b).abs().sum() / 2 for a in A for b in A)


@draw(12, n=sizes, d=sizes)
def test_theorem_1_the_ratio_vanishes_at_the_rate_of_the_second_eigenvalue(seed, n, d):
    A, X = softmax_map(seed, n), normal(seed + 1, n, d) + 3
    decay = theory.measure_low_pass_decay(A, X, steps=200)
    assert decay.assumed
    assert decay.rate < 1
    assume(decay.rate < 0.9)  # 200 steps suffice
    assert decay.ratio < 1e-6
    assert_close(decay.stationary_mean, (stationary(A) @ X).norm())


def test_theorem_1_of_agf_counts_more_low_frequencies():
    A, X = softmax_map(3, 7), normal(4, 7, 2) + 3
    assert_close(theory.trace_hfc_lfc(lambda x: A @ x, X, 5)[5],
                 spectral.hfc_lfc(torch.linalg.matrix_power(A, 5) @ X))  # fmt: skip
    spectrum = torch.fft.fft(torch.linalg.matrix_power(A, 60) @ X, dim=0)
    for c in (0, 1):  # pairs of frequencies above 0
        is_low = torch.fft.fftfreq(7).abs() * 7 <= c + 0.5
        assert spectrum[~is_low].norm() < 1e-12 * spectrum[is_low].norm()


def test_theorem_1_fails_by_hand_and_definition_1_for_tokens_of_zeros():
    A, x = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[1.0], [-1.0]])
    assert theory.trace_hfc_lfc(lambda x: A @ x, x, 5).isinf().all()
    assert theory.trace_hfc_lfc(lambda x: A @ x, 0 * x, 5).isnan().all()


@draw(n=sizes, scale=scales)
def test_corollary_2_products_mix_at_least_as_fast_as_their_factors(seed, n, scale):
    maps = (scale * normal(seed, 4, n, n)).softmax(-1)
    product = maps[3] @ maps[2] @ maps[1] @ maps[0]
    bound = theory.bound_product_mixing(maps)
    assert bound.holds
    assert_close(bound.measured, dobrushin(product))
    x = normal(seed + 1, n, 2)
    spread, before = ((y.amax(0) - y.amin(0)) for y in (product @ x, x))
    assert (spread <= bound.measured * before + 1e-12).all()


def test_corollary_2_and_remark_d1_fail_without_a_bound_and_in_the_euclidean_norm():
    n = 5
    growing = torch.stack([(3.0 + k) * torch.eye(n).double() for k in range(60)]).softmax(-1)
    assert theory.bound_product_mixing(growing).measured > 0.5
    bounded = torch.stack([3.0 * torch.eye(n).double() for _ in range(60)]).softmax(-1)
    assert theory.bound_product_mixing(bounded).measured < 1e-3
    A = torch.tensor([[4e-4, 0.9991, 1e-4, 4e-4], [0.033, 6e-4, 0.0075, 0.9589],
                      [0.05, 0.9497, 1e-4, 2e-4], [1e-4, 0.0226, 2e-4, 0.9771]],
                     dtype=torch.float64)  # fmt: skip
    pi = stationary(A)
    before, after = (A - pi).norm(dim=-1), (A @ A - pi).norm(dim=-1)
    assert after[1] > 1.1 * before[1]


@draw(n=sizes, scale=scales)
def test_remark_d1_holds_in_the_norm_of_l1(seed, n, scale):
    A = softmax_map(seed, n, min(scale, 4.0))
    pi = stationary(A)
    before, after = ((M - pi).abs().sum(-1) for M in (A, A @ A))
    assert (after <= dobrushin(A) * before + 1e-12).all()


@draw(n=sizes, d=sizes, scale=scales)
def test_lemma_7_the_mean_is_the_nearest_constant(seed, n, d, scale):
    X, z = normal(seed, n, d), scale * normal(seed + 1, d)
    distance = (X - z).norm()
    assert_close(
        distance**2 - spectral.high_frequency_norm(X) ** 2, n * (X.mean(0) - z).square().sum()
    )  # so the norm is at most the distance, and equal for the mean


@draw(n=sizes, scale=scales)
def test_lemma_8_the_low_pass_part_is_the_uniform_map(seed, n, scale):
    A = softmax_map(seed, n, scale)
    J = torch.full((n * n, 1), 1 / n).double()
    fitted = torch.linalg.lstsq(J, A.reshape(-1, 1)).solution.squeeze()
    assert_close(fitted, torch.ones(()).double())


@draw(n=sizes, d=sizes)
def test_remark_d2_refutes_the_bound_of_dong_et_al(seed, n, d):
    def norms(D, r, R, W):  # the product, the printed bound, and one with the sum over rows
        sums, weights = D.sum(-1), r.softmax(-1)
        product = torch.outer(sums, weights @ R @ W).abs().sum(0).max()
        scale = torch.linalg.matrix_norm(R, 1) * torch.linalg.matrix_norm(W, 1)
        return product, sums.abs().max() * scale, sums.abs().sum() * weights.max() * scale

    eye = torch.eye(2).double()
    r = torch.tensor([0.8, 0.2]).double().log()
    product, printed, summed = norms(torch.diag(torch.tensor([2.0, 3.0]).double()), r, eye, eye)
    assert [round(x.item(), 9) for x in (product, printed, summed)] == [4, 3, 4]
    R, W = normal(seed + 2, n, d), normal(seed + 3, d, 3)
    product, _, summed = norms(torch.diag(normal(seed, n)), normal(seed + 1, n), R, W)
    assert product <= summed * (1 + 1e-12)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_fourier_matrix_splits_off_the_mean_and_the_printed_one_cannot(n):
    F = reference.dft(n).to(torch.complex128)
    assert_close(F.mH @ F, torch.eye(n, dtype=F.dtype))
    x = normal(n, n, 3)
    low = torch.zeros(n, n, dtype=F.dtype)
    low[0, 0] = 1
    assert_close((F.mH @ low @ F).real @ x, x - center(x))
    turns = torch.arange(n).double().outer(torch.arange(n).double())
    printed = torch.exp(2j * torch.pi * turns)  # without 1 / n in the exponent
    assert torch.linalg.matrix_rank(printed, rtol=1e-9) == 1
    if n > 2:
        assert not torch.allclose(F @ F, torch.eye(n, dtype=F.dtype))  # F is not its own inverse
