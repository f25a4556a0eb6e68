"""The filters that GFSA says it contains, for particular coefficients (section 3.3)."""

import pytest
import torch
from attention_core import GFSA, spectral
from torch.testing import assert_close

H, N = 2, 6


@pytest.mark.parametrize(("K", "w0", "w1", "wK", "literal"), [
    (1, 0.0, 1.0, 0.0, lambda A, eye: A),  # GCN
    (1, 0.3, 0.5, 0.2, lambda A, eye: 0.3 * eye + 0.7 * A),  # ChebNet and GPR-GNN of order 1
    (4, 0.3, 0.7, 0.0, lambda A, eye: 0.3 * eye + 0.7 * A),
    (2, 0.0, 1.4, -0.4, lambda A, eye: A + 0.4 * (A - A @ A)),  # GREAD's reaction, beta = 0.4
])  # fmt: skip
def test_gfsa_contains_the_filters_that_the_paper_names(K, w0, w1, wK, literal):
    A, eye = torch.randn(1, H, N, N).double().softmax(-1), torch.eye(N).double()
    found = spectral.matrix(GFSA(H, K=K, w0=w0, w1=w1, wK=wK).double(), A)
    assert_close(found, literal(A, eye), rtol=1e-6, atol=1e-6)  # coefficients are stored in float32
