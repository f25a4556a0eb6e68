"""One dropped map for all applications of A in a filter."""

import pytest
import torch
from attention_core import GFSA, Softmax, spectral
from attention_core.filters import AttnScale, Plain, dropout_on_H, share_dropout
from attention_core.operators import Host, softmax
from torch.testing import assert_close

from tests.core.cases import H, gradients, qkv


def test_a_polynomial_that_shares_dropout_is_that_of_one_dropped_map(monkeypatch):
    monkeypatch.setattr(softmax, "can_recompute", lambda *operands: False)  # as on a GPU
    q, k, v = qkv()
    filter = share_dropout(GFSA(H, K=3, w0=0.5, w1=1.0, wK=2.0)).double()
    torch.manual_seed(3)
    y = filter(Softmax(q, k, dropout=0.5), v)
    torch.manual_seed(3)
    A = torch.nn.functional.dropout(Softmax(q, k).dense(), 0.5)
    assert_close(y, 0.5 * v + A @ v + 2 * (A + 2 * (A @ A - A)) @ v)


@pytest.mark.parametrize("make", [
    lambda q, k, mask: Softmax(q, k, mask, dropout=0.5),
    lambda q, k, mask: Host(Softmax(q, k, mask).dense().__matmul__, q, dropout=0.5,
                            average=Softmax(q, k, mask).average),
])  # fmt: skip
@pytest.mark.parametrize("kind", [GFSA, AttnScale])
def test_a_filter_may_drop_entries_of_its_own_map(make, kind):
    q, k, v = qkv()
    valid = (torch.arange(q.shape[-2]) < q.shape[-2] - 2).expand(len(q), 1, 1, -1)
    filter = kind(H).double()
    torch.nn.init.constant_(next(filter.parameters()), 0.7)
    form = spectral.matrix(filter, Softmax(q, k, valid)).contiguous()
    dropout_on_H(filter)
    torch.manual_seed(3)
    y = filter(make(q, k, valid), v)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(form, 0.5) @ v
    assert_close(y, expected)
    assert_close(*gradients([q, k, v], y, expected))
    assert_close(filter(Softmax(q, k, valid), v), form @ v)  # without dropout
    with pytest.raises(ValueError, match="cannot be causal"):
        dropout_on_H(AttnScale(H, masked=False))(Softmax(q, k, None, True, 0.5), v)
    assert dropout_on_H(Plain())(Softmax(q, k, dropout=0.5), v).shape == v.shape
