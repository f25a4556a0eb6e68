"""Error rates: the fewest edits, summed over utterances."""

from attention_speech.wer import ErrorRate, count_character_edits, count_edits, count_word_edits
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.utils.edit_distance import count_ops, op_table


@given(st.text("AB", max_size=9), st.text("ABC", max_size=9))
def test_edits_are_as_few_as_speechbrains(reference: str, hypothesis: str) -> None:
    edits = count_edits(reference, hypothesis)
    assert sum(edits[:3]) == sum(count_ops(op_table(reference, hypothesis)).values())
    assert edits.length == len(reference)
    assert edits.insertions - edits.deletions == len(hypothesis) - len(reference)


def test_substitutions_are_preferred_among_alignments_of_equal_cost() -> None:
    assert count_edits("AB", "BA")[:3] == (2, 0, 0)  # jiwer and speechbrain count (0, 1, 1)


def test_error_rates_sum_over_batches_and_are_not_averaged() -> None:
    rate = ErrorRate()
    rate.update([count_word_edits("ONE TWO THREE", "ONE THREE")])
    rate.update([count_word_edits("TEN", "TEN ELEVEN"), count_word_edits("", "")])
    found = {name: value.item() for name, value in rate.compute().items()}
    assert found == {"rate": 0.5, "substitutions": 0, "insertions": 1, "deletions": 1}
    rate.reset()
    rate.update([count_character_edits("AB", "AC")])
    assert rate.compute()["rate"] == 0.5
