"""The grouping of a corpus into blocks."""

from functools import cache

from attention_nlp.data.spans import TextRow, tokenize_rows
from attention_nlp.tokenizer import train_tokenizer
from hypothesis import given
from hypothesis import strategies as st


@cache
def character_tokenizer():
    return train_tokenizer("gpt2", [], 261)


@given(
    sizes=st.lists(st.integers(0, 9), max_size=30),
    block=st.integers(2, 31),
    repeats=st.sampled_from([1, 40, 90]),
)
def test_released_grouping_drops_the_remainder_of_every_thousand_rows(sizes, block, repeats):
    rows = [TextRow("abcdefghi"[:size], size % 4) for size in sizes * repeats]
    expected: list[int] = []
    for start in range(0, len(rows), 1000):
        texts = [character_tokenizer()(row.text)["input_ids"] for row in rows[start : start + 1000]]
        flat = [token for text in texts for token in text]
        expected += flat[: len(flat) // block * block]
    found = tokenize_rows(rows, character_tokenizer(), block)
    assert found.ids.tolist() == expected
    whole = tokenize_rows(rows, character_tokenizer())
    assert (
        whole.ids.tolist() == character_tokenizer()("".join(row.text for row in rows))["input_ids"]
    )
    assert whole.num_words.sum() == sum(row.num_words for row in rows if row.text)
