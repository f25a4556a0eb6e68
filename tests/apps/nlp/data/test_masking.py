"""The counts of masked, replaced and kept words."""

import numpy as np
from attention_nlp.data.masking import mask_words
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(4, 300), st.floats(0.01, 1.0), st.integers(0, 99))
def test_counts_of_masks_are_exact(length: int, share: float, seed: int) -> None:
    ids = np.arange(100, 100 + length)  # all distinct, none of the words that may be drawn
    changed, target = mask_words(ids, 7, 50, share, np.random.default_rng(seed))
    count, asked = round(share * length), target != -100
    assert asked.sum() == count
    assert (target[asked] == ids[asked]).all()
    assert (changed[~asked] == ids[~asked]).all()
    kept = (changed[asked] == ids[asked]).sum()
    assert kept == count - round(0.9 * count)
    drawn = changed[asked & (changed != ids)]
    assert (drawn == 7).sum() >= round(0.8 * count)
    assert ((drawn < 50) | (drawn == 7)).all()


def test_32_of_128_are_asked_for() -> None:
    changed, target = mask_words(np.full(128, 60), 7, 7, 0.25, np.random.default_rng(0))
    asked = target == 60
    counts = [(changed[asked] == 7).sum(), (changed[asked] < 7).sum(), (changed[asked] == 60).sum()]
    assert counts == [26, 3, 3]
