"""Spectral measures: values checked by hand, and against the definitions as loops."""

import pytest
import torch
from attention_core import spectral
from attention_core.spectral import dominating_eigenvalue_shares
from torch.testing import assert_close

from tests.core import reference

N, D, M = 9, 5, 6


def tokens() -> torch.Tensor:
    return torch.randn(2, 3, N, D).double()


MEASURES = [
    spectral.hfc_lfc,
    spectral.hfc_share,
    spectral.high_frequency_norm,
    spectral.token_cosine,
    spectral.effective_rank,
    lambda x, mask=None: spectral.token_cosine(x, mask, signed=True),
]


@pytest.mark.parametrize("measure", MEASURES)
def test_masks_equal_truncation(measure):
    x, valid = tokens(), (torch.arange(N) < M).expand(2, 3, N)
    assert measure(x).shape == (2, 3)
    assert_close(measure(x.where(valid[..., None], torch.nan), valid), measure(x[..., :M, :]))


def test_frequencies_by_hand():
    x = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 3.0]])  # mean (2, 1)
    hc, dc, whole = 8**0.5, 15**0.5, 23**0.5
    assert [f(x).item() for f in MEASURES[:3]] == pytest.approx([hc / dc, hc / whole, hc])


@pytest.mark.parametrize("signed", [False, True])
def test_cosines_and_rank_by_their_definitions(signed):
    x = tokens()
    expected = [[reference.cosine(head, signed) for head in sample] for sample in x]
    assert_close(spectral.token_cosine(x, signed=signed), torch.tensor(expected).double())
    rank = spectral.effective_rank(x)[0, 0].item()
    assert rank == pytest.approx(reference.effective_rank(x[0, 0]))


def test_map_cosine_compares_columns_and_averages_heads():
    A = torch.rand(2, 3, N, N).double()
    heads = [[reference.cosine(head.T) for head in sample] for sample in A]
    assert_close(spectral.map_cosine(A), torch.tensor(heads).double().mean(-1))


def test_dft_response_and_of_a_circulant_map_its_transfer_function():
    H = torch.randn(N, N).double()
    assert_close(spectral.dft_response(H), reference.dft_response(H))
    assert spectral.dft_response(H.bfloat16()).dtype == torch.float32
    c, i = torch.rand(N).double(), torch.arange(N)
    assert_close(spectral.dft_response(c[(i[:, None] - i[None, :]) % N]), torch.fft.fft(c).abs())
    low_pass = torch.full((N, N), 1 / N).double()
    assert_close(spectral.dft_response(low_pass), torch.eye(N).double()[0])


def test_dft_response_of_padded_samples_is_that_of_their_valid_tokens():
    H, size = torch.rand(3, 2, 12, 12).double(), 6
    valid = torch.ones(3, 12, dtype=torch.bool)
    valid[1, size:] = valid[2, ::2] = False  # padding behind, and between the tokens
    found = spectral.dft_response(H, valid)
    assert_close(found[0], spectral.dft_response(H[0]))
    for sample, part in ((1, slice(size)), (2, slice(1, None, 2))):
        expected = spectral.dft_response(H[sample][:, part, part])
        assert_close(found[sample][:, ::2], expected)  # 12 frequencies of 6 tokens: two for one
        assert_close(found[sample][:, 1::2], (expected + expected.roll(-1, -1)) / 2)
    assert spectral.dft_response(H, torch.zeros(3, 12, dtype=torch.bool)).count_nonzero() == 0


def test_the_response_of_a_filter_of_singular_values_is_that_filter():
    A = torch.randn(2, N, N).double()
    U, sigma, Vh = torch.linalg.svd(A)
    H = U @ torch.diag_embed(0.5 - sigma + 2 * sigma**2) @ Vh
    assert_close(spectral.singular_response(A, H), (sigma, 0.5 - sigma + 2 * sigma**2))
    assert_close(spectral.singular_values(A), sigma)
    assert spectral.singular_values(A.bfloat16()).dtype == torch.float32


def classify(H: list[complex], A: list[complex]) -> str:
    """Compare the largest |1 + h a| at the eigenvalue a = 1 of A with that at the others."""
    perron = min(range(len(A)), key=lambda i: abs(A[i] - 1))
    smooth = max(abs(1 + h * A[perron]) for h in H)
    sharp = max(abs(1 + h * A[i]) for h in H for i in range(len(A)) if i != perron)
    if abs(smooth - sharp) <= 1e-4 * min(smooth, sharp):
        return "tied"
    return "smoothing" if smooth > sharp else "sharpening"


def test_dominating_eigenvalues_by_a_double_loop():
    H = torch.linalg.eigvals(torch.randn(3, D, D).double())
    A = torch.linalg.eigvals(torch.randn(2, 3, N, N).double().mul(3).softmax(-1))
    found = dominating_eigenvalue_shares(H, A)
    cases = [classify(H[h].tolist(), A[b, h].tolist()) for b in range(2) for h in range(3)]
    assert A.is_complex()
    assert len(set(cases)) > 1
    expected = [cases.count(kind) / 6 for kind in ("smoothing", "sharpening", "tied")]
    assert_close(found, torch.tensor(expected).double())


def test_zeros_of_h_tie_unless_a_pair_exceeds_one_and_one_token_is_always_smooth():
    positive, mixed = torch.tensor([1.0, 0.3]), torch.tensor([1.0, -0.3])
    H = torch.tensor([-0.9, -0.2, 0.0])
    assert dominating_eigenvalue_shares(H, positive).tolist() == [0, 0, 1]
    assert dominating_eigenvalue_shares(H, mixed).tolist() == [0, 1, 0]  # 1 + 0.27 exceeds 1
    assert dominating_eigenvalue_shares(H[:2], positive).tolist() == [0, 1, 0]
    assert dominating_eigenvalue_shares(H[:1], torch.ones(4, 1)).tolist() == [1, 0, 0]
