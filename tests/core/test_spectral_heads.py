"""Measures of heads, bounds and weights: by hand, and against their definitions as loops."""

import math

import pytest
import torch
from attention_core import GFSA, spectral
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

B, H, N, M, D = 2, 3, 9, 6, 5


def make_maps(scale: float = 2.0) -> torch.Tensor:
    return torch.randn(B, H, N, N).double().mul(scale).softmax(-1)


def make_padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Return maps whose first M tokens are valid, with NaN in the rows of padding."""
    A = torch.randn(B, H, N, N).double()
    valid = (torch.arange(N) < M).expand(B, N)
    A = A.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1)
    A[:, :, M:] = torch.nan
    return A, valid


def test_entropy_by_its_definition():
    A = make_maps()
    expected = -(A * A.log()).sum(-1).mean(-1)
    assert_close(spectral.attention_entropy(A), expected)
    assert_close(spectral.attention_entropy(A, relative=True), expected / math.log(N))


def test_relative_entropy_counts_allowed_keys():
    logits = torch.randn(H, N, N).double()
    causal = logits.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf).softmax(-1)
    rows = [torch.special.entr(causal[:, i]).sum(-1) / math.log(i + 1) for i in range(1, N)]
    assert_close(spectral.attention_entropy(causal, relative=True), torch.stack(rows).mean(0))
    uniform = torch.ones(1, N, N).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    assert_close(spectral.attention_entropy(uniform, relative=True), torch.ones(1))
    assert spectral.attention_entropy(-uniform).isnan().all()


@pytest.mark.parametrize("measure", [
    spectral.attention_entropy,
    lambda A, mask=None: spectral.attention_entropy(A, mask, relative=True),
    spectral.head_cosine,
    spectral.map_cosine,
])  # fmt: skip
def test_masks_equal_truncation_and_padding_may_be_nan(measure):
    A, valid = make_padded()
    assert_close(measure(A, valid), measure(A[..., :M, :M]))
    for bound in (spectral.logit_range, spectral.map_smoothing_rate):
        assert_close(bound(A, valid.unsqueeze(1)), bound(A[..., :M, :M]))


def test_head_cosine_by_its_definition():
    A = make_maps()
    pairs = [(g, h) for g in range(H) for h in range(g)]
    cosine = torch.nn.functional.cosine_similarity
    expected = [cosine(A[:, g].flatten(1), A[:, h].flatten(1)) for g, h in pairs]
    assert_close(spectral.head_cosine(A), torch.stack(expected).mean(0))
    with pytest.raises(ValueError, match="two heads"):
        spectral.head_cosine(A[:, :1])


@given(st.floats(0.1, 6), st.floats(-5, 5))
def test_the_logit_range_is_the_smallest_that_gives_the_map(scale, shift):
    P = torch.randn(N, N).double() * scale
    alpha = spectral.logit_range((P + shift).softmax(-1))
    centers = (P.amax(-1) + P.amin(-1)) / 2
    assert_close(alpha, (P - centers[:, None]).abs().amax())
    assert alpha <= P.abs().amax() + 1e-9
    causal = P.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf).softmax(-1)
    assert spectral.logit_range(causal) == math.inf


@given(st.floats(0.0, 4))
def test_rates_bound_the_growth_of_high_frequencies(scale):
    A, x = make_maps(scale), torch.randn(B, H, N, D).double()
    growth = spectral.high_frequency_norm(A @ x) / spectral.high_frequency_norm(x)
    sharp = spectral.map_smoothing_rate(A)
    loose = spectral.smoothing_rate(spectral.logit_range(A), N)
    assert (growth <= sharp + 1e-9).all()
    assert (sharp <= loose + 1e-9).all()


def test_the_rate_of_a_map_is_reached_also_by_a_filter():
    A = make_maps()
    for M_ in (A, spectral.matrix(GFSA(H, w0=0.3, wK=-0.5).double(), A)):
        high = torch.eye(N).double() - 1 / N
        _, sigma, Vh = torch.linalg.svd(high @ M_)
        assert_close(spectral.map_smoothing_rate(M_), sigma[..., 0])
        x = Vh.mT[..., :1]  # the worst tokens have mean zero
        growth = spectral.high_frequency_norm(M_ @ x) / spectral.high_frequency_norm(x)
        assert_close(growth, sigma[..., 0])


def test_the_spectrum_of_a_head_has_zeros_where_it_is_narrower_than_the_tokens():
    value, output = torch.randn(6, 5), torch.randn(5, 6)
    found = spectral.value_output_eigenvalues(value, output, 2)
    assert found.shape == (2, 4)
    assert found[:, -1].tolist() == [0, 0]
    for head in range(2):
        rows = slice(3 * head, 3 * head + 3)
        whole = torch.linalg.eigvals((value.double()[rows].T @ output.double()[:, rows].T).T)
        largest = whole.abs().sort(descending=True).values[:3]
        assert_close(found[head].abs().sort(descending=True).values[:3], largest)
    whole = spectral.value_output_eigenvalues(torch.randn(5, 5), torch.randn(5, 5), num_heads=1)
    assert whole.shape == (1, 5)


def test_condition_numbers():
    W = torch.randn(B, D, D).double()
    assert_close(spectral.condition_number(W), torch.linalg.cond(W))
    W[0, 0] = W[0, 1]
    assert spectral.condition_number(W).isinf().tolist() == [True, False]
