"""The documentation of Python as sentences."""

from attention_nlp.data import PythonDocsOrder
from attention_nlp.data.docs import list_sentences, scramble_sentence


def test_sentences_of_the_documentation_are_many_and_scrambled_ones_keep_their_words() -> None:
    found = list_sentences()
    assert len(found) > 1000
    assert len(set(found)) == len(found)
    for text in found[:: len(found) // 50]:
        mixed = scramble_sentence(text)
        assert mixed != text
        assert sorted(mixed[:-1].lower().split()) == sorted(text[:-1].lower().split())


def test_the_documentation_is_split_without_overlap() -> None:
    data = PythonDocsOrder("docs")
    train, dev = ({e.text.lower() for e in data.read_split(split)} for split in ("train", "dev"))
    assert not train & dev
    share = sum(example.target for example in data.read_split("train")) / len(train)
    assert 0.45 < share < 0.55
