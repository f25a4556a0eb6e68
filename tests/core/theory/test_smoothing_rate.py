"""Theorem 3 of AttnScale and what follows from it: no violation, and the false claims."""

import math

import pytest
import torch
from attention_core import spectral, theory
from torch.testing import assert_close

from tests.core.theory.draws import center, draw, normal, scales, sizes

H, D = 3, 2


def heads(seed, n, d, scale):
    P = scale * normal(seed, H, n, n)
    return P, normal(seed + 1, H, d, D), normal(seed + 2, H, D, d), normal(seed + 3, n, d)


@draw(n=sizes, d=sizes, scale=scales)
def test_theorem_3_bounds_the_literal_head(seed, n, d, scale):
    P, W_V, X = scale * normal(seed, n, n), normal(seed + 1, d, D), normal(seed + 2, n, d)
    bound = theory.bound_attention_smoothing(P, W_V, X)
    assert bound.holds
    assert_close(bound.measured, center(P.softmax(-1) @ X @ W_V).norm())
    alpha = P.abs().max().item()
    factor = math.sqrt(n * math.exp(2 * alpha) / (math.exp(2 * alpha) + n - 1))
    assert bound.upper.item() == pytest.approx(factor * W_V.svd().S[0] * center(X).norm())


@draw(n=sizes, d=sizes, scale=scales)
def test_logits_of_tokens_in_a_ball(seed, n, d, scale):
    X, W_Q, W_K = scale * normal(seed, n, d), normal(seed + 1, d, D), normal(seed + 2, d, D)
    bound = theory.bound_logits(X, W_Q, W_K)
    assert bound.holds
    assert_close(bound.measured, ((X @ W_Q) @ (X @ W_K).T / D**0.5).abs().max())
    distances = torch.stack([(x @ W_Q - y @ W_K).square().sum() for x in X for y in X])
    norms = torch.linalg.matrix_norm(W_Q, 2) + torch.linalg.matrix_norm(W_K, 2)
    assert (distances <= (norms * X.norm(dim=-1).max()) ** 2 * (1 + 1e-9)).all()


def test_remark_d3_logistic_as_printed_fails_for_a_negative_b():
    x, u = torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5])
    norms, gamma = 2 * u.norm(), x.norm(dim=-1).max()
    for b, holds in ((-2.0, False), (2.0, True)):
        alpha = (x @ u + (x @ u).unsqueeze(-1) + b).abs().max()
        assert (alpha <= (norms * gamma + b).abs()) == holds
        assert alpha <= norms * gamma + abs(b)


@draw(n=sizes, scale=scales)
def test_the_conditions_that_imply_a_decay(seed, n, scale):
    condition = theory.check_decay(normal(seed + 1, 50).abs(), scale * normal(seed, 4, D), n)
    assert (condition.factor[condition.small_values | condition.corrected] < 1).all()
    assert condition.factor.shape == condition.printed.shape == condition.small_values.shape


def test_the_printed_condition_for_a_decay_fails():
    """The tokens grow, layer by layer, by more than 1.2, though the condition is satisfied."""
    X, W_V = torch.tensor([1.0, -1.0] * 20).double()[:, None], torch.full((1, 1), 1.6).double()
    one = torch.ones(1, 1).double()
    condition = theory.check_decay(theory.bound_logits(X, one, one).upper, W_V, 40)
    assert condition.printed
    assert not condition.corrected
    assert condition.factor > 1
    for _ in range(3):
        before, X = X, (X @ X.T).softmax(-1) @ X @ W_V
        assert center(X).norm() > 1.2 * center(before).norm()


@draw(n=sizes, d=sizes, scale=scales)
def test_propositions_4_to_6_bound_the_literal_block(seed, n, d, scale):
    P, W_V, W_O, X = heads(seed, n, d, scale)
    msa = sum(P[h].softmax(-1) @ X @ W_V[h] @ W_O[h] for h in range(H))
    bounds = theory.bound_multi_head_smoothing(P, W_V, W_O, X)
    residual = theory.bound_residual_smoothing(P, W_V, W_O, X)
    assert bounds.holds
    assert residual.holds
    assert_close(bounds.measured, center(msa).norm())
    assert_close(residual.measured, center(X + msa).norm())
    W = normal(seed + 4, d, d)
    lipschitz = torch.linalg.matrix_norm(W, 2).item()
    for skip in (False, True):
        block = theory.bound_block_smoothing(
            P, W_V, W_O, X, lambda x: torch.tanh(x @ W), lipschitz, residual=skip
        )
        assert block.holds
        assert_close(block.upper, (lipschitz + skip) * residual.upper)


def test_a_residual_bound_above_1_keeps_no_high_frequency():
    X, W = normal(0, 5, 2), torch.eye(2)[None].double()
    bound = theory.bound_residual_smoothing(100 * torch.eye(5)[None].double(), -W, W, X)
    assert bound.upper > center(X).norm()
    assert bound.measured < 1e-12


@draw(n=sizes, scale=scales)
def test_a_residual_keeps_high_frequencies_where_attention_contracts(seed, n, scale):
    P, W_V, W_O, X = heads(seed, n, 4, scale)
    A = P.softmax(-1)
    norms = torch.linalg.matrix_norm(W_V @ W_O, 2) * spectral.map_smoothing_rate(A)
    W_O = W_O * 0.5 / norms.sum()
    bound = theory.bound_residual_smoothing(P, W_V, W_O, X)
    assert_close(bound.lower, 0.5 * center(X).norm())
    assert bound.measured >= bound.lower


def test_masked_logits_have_the_factor_of_an_infinite_alpha():
    P = torch.zeros(3, 3).double().masked_fill(torch.ones(3, 3).triu(1) > 0, -torch.inf)
    bound = theory.bound_attention_smoothing(P, torch.eye(2).double(), normal(0, 3, 2))
    assert bound.holds
    assert_close(bound.upper, 3**0.5 * center(normal(0, 3, 2)).norm())
