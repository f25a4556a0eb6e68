"""Properties of every filter, for all shapes and masks."""

import torch
from attention_core import Softmax
from attention_core.spectral import matrix
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.core.cases import H, all_cases, randomized

sizes = st.tuples(st.integers(1, 3), st.integers(1, 11), st.integers(1, 6))  # batch, tokens, width
seeds = st.integers(0, 2**16)


def draw(size, seed):
    torch.manual_seed(seed)
    batch, n, width = size
    return [torch.randn(batch, H, n, width).double() for _ in range(3)], torch.rand(batch, n) < 0.6


@all_cases()
@given(size=sizes, seed=seeds, is_causal=st.booleans())
def test_masked_keys_never_reach_a_real_token(case, size, seed, is_causal):
    (q, k, v), valid = draw(size, seed)
    A, filter = Softmax(q, k, valid[:, None, None, :], is_causal), randomized(case)
    garbage = torch.where(valid[:, None, :, None], v, 1e3 * torch.randn_like(v))
    before, after = (filter(A, u).mT[valid[:, None, None, :].expand_as(v.mT)] for u in (v, garbage))
    assert_close(before, after)


@all_cases()
@given(size=sizes, seed=seeds, data=st.data())
def test_causal_stays_causal(case, size, seed, data):
    (q, k, v), valid = draw(size, seed)
    t = data.draw(st.integers(0, size[1] - 1))
    mask = data.draw(st.sampled_from([None, valid[:, None, None, :]]))
    filter, past = randomized(case), slice(0, t + 1)
    future = [torch.cat([x[:, :, past], torch.randn_like(x)[:, :, t + 1 :]], -2) for x in (q, k, v)]
    before, after = (
        filter(Softmax(*pair, mask, is_causal=True), values)[:, :, past]
        for *pair, values in ((q, k, v), future)
    )
    assert_close(before, after)


@all_cases()
@given(size=sizes, seed=seeds, is_causal=st.booleans())
def test_the_map_times_values_is_the_filter(case, size, seed, is_causal):
    (q, k, v), valid = draw(size, seed)
    A, filter = Softmax(q, k, valid[:, None, None, :], is_causal), randomized(case)
    assert_close(matrix(filter, A) @ v, filter(A, v))
