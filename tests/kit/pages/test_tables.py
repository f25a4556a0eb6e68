"""The best of a column is marked where its confidence interval overlaps no other one."""

import math

import pytest
from experiment_kit.pages.tables import MeanDeviation, find_best
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

ESTIMATES = st.dictionaries(
    st.text(max_size=3),
    st.builds(MeanDeviation, st.floats(-9, 9), st.floats(0, 2), st.integers(1, 9)),
    max_size=5,
)


@given(st.floats(0, 9), st.integers(2, 30))
def test_the_interval_is_that_of_student(std, count) -> None:
    low, high = t.interval(0.95, count - 1, loc=1.0, scale=max(std, 1e-9) / math.sqrt(count))
    assert MeanDeviation(1.0, std, count).half_width == pytest.approx((high - low) / 2, abs=1e-7)


@given(ESTIMATES)
def test_the_best_of_higher_is_the_best_of_lower_of_the_opposites(estimates) -> None:
    opposites = {key: MeanDeviation(-e.mean, e.std, e.count) for key, e in estimates.items()}
    best = find_best(estimates, True)
    assert find_best(opposites, False) == best
    if best is not None:
        e = estimates[best]
        others = [o for key, o in estimates.items() if key != best]
        assert all(e.mean - e.half_width > o.mean + o.half_width for o in others)
