"""One dropped map for all applications of A in a filter."""

import pytest
import torch
from attention_core import GFSA, Softmax
from attention_core.filters import share_dropout
from attention_core.operators import _cpu, propagate
from torch.testing import assert_close

from tests.core.cases import H, qkv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_filter_that_shares_dropout_squares_one_dropped_map(dtype):
    seen = []

    class Square(torch.nn.Module):
        def forward(self, A, v):
            seen.append(A @ A.eye())
            return propagate(A, propagate(A, v))

    q, k, v = (t.to(dtype) for t in qkv())
    square = share_dropout(Square())
    y = square(Softmax(q, k, dropout=0.5), v)
    (A,) = seen
    assert (A == 0).float().mean() > 0.3
    assert_close(y, A @ (A @ v))
    y.float().sum().backward()
    assert_close(Square()(Softmax(q, k), v), propagate(Softmax(q, k), propagate(Softmax(q, k), v)))


def test_a_polynomial_that_shares_dropout_is_that_of_one_dropped_map(monkeypatch):
    monkeypatch.setattr(_cpu, "MAX_MAP_NUMEL", 0)  # the path of a GPU
    q, k, v = qkv()
    filter = share_dropout(GFSA(H, K=3, w0=0.5, w1=1.0, wK=2.0)).double()
    torch.manual_seed(3)
    y = filter(Softmax(q, k, dropout=0.5), v)
    torch.manual_seed(3)
    A = torch.nn.functional.dropout(Softmax(q, k).dense(), 0.5)
    assert_close(y, 0.5 * v + A @ v + 2 * (A + 2 * (A @ A - A)) @ v)
