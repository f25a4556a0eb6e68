"""Tokenizers: round trips, sizes, and files that are none."""

import pytest
from attention_speech.tokenizer import BLANK, BOS, EOS, NUM_SPECIAL, UNK, Tokenizer, train_tokenizer
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import train_as_speechbrain

TEXTS = ["ONE TWO THREE FOUR FIVE", "SIX SEVEN EIGHT NINE ZERO", "TWO TWO ONE"]


@pytest.mark.parametrize(("token_type", "size"), [("char", 500), ("unigram", 25)])
def test_a_tokenizer_decodes_what_it_encodes(token_type, size: int, tmp_path) -> None:
    path = train_tokenizer(TEXTS, size, token_type, tmp_path)
    tokenizer = Tokenizer(path)
    assert token_type == "char" or tokenizer.vocab_size == size
    for text in (*TEXTS, "NINE ONE", ""):
        ids = tokenizer.encode(text)
        assert all(NUM_SPECIAL <= i < tokenizer.vocab_size for i in ids)
        assert tokenizer.decode([BOS, *ids, EOS, BLANK]) == text
    assert UNK in tokenizer.encode("QUACK")
    assert train_tokenizer(TEXTS[:2], size - 1, token_type, tmp_path) != path


@pytest.mark.parametrize(("texts", "size", "token_type", "message"), [
    (TEXTS, 9999, "unigram", r"9999 does not suit the texts: they have pieces for \d+ ids at most"),
    (TEXTS, 8, "unigram", "8 is too small: the characters alone take 20"),
    (TEXTS, 8, "char", "8 is too small"),
    (["", " "], 30, "char", "empty"),
])  # fmt: skip
def test_a_size_unfit_for_the_texts_is_refused(texts, size, token_type, message, tmp_path) -> None:
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, size, token_type, tmp_path)
    assert not list(tmp_path.glob("*/*"))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match="there is no tokenizer"):
        Tokenizer(tmp_path / "absent.model").encode("ONE")
    (tmp_path / "text.model").write_text("ONE")
    with pytest.raises(UserError, match="no SentencePiece model"):
        Tokenizer(tmp_path / "text.model").encode("ONE")


def test_a_tokenizer_of_speechbrain_has_the_unknown_id_of_the_blank(tmp_path) -> None:
    tokenizer = Tokenizer(train_as_speechbrain(tmp_path))
    ids = tokenizer.encode("NINE ONE")
    assert tokenizer.is_speechbrains
    assert min(ids) > EOS
    assert tokenizer.decode([BOS, *ids, EOS, BLANK]) == "NINE ONE"
    assert tokenizer.has_unknown("QUACK")
    assert BLANK not in tokenizer.encode("QUACK")
    assert not tokenizer.has_unknown("ONE")
