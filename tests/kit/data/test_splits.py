"""A stratified split of the training set."""

import numpy as np
from experiment_kit.data.datamodule import split_stratified
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.sampled_from("abc"), min_size=6, max_size=60), st.integers(0, 9))
def test_a_split_is_a_partition_that_keeps_each_class_in_training(labels, seed) -> None:
    labels = np.array(labels)
    kept, held = split_stratified(labels, 0.2, seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert set(labels[kept]) == set(labels)
    again = split_stratified(labels, 0.2, seed)
    assert np.array_equal(kept, again[0])
    assert np.array_equal(held, again[1])
