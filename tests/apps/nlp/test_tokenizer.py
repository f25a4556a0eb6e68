"""Tokenizers that are trained: kept, read back, and never too small."""

import hashlib
import json
import random

import pytest
from attention_nlp import tokenizer as tokenizers
from experiment_kit.errors import UserError
from transformers import BertConfig, PreTrainedTokenizerFast


@pytest.mark.parametrize("architecture", ["bert", "roberta", "gpt2"])
def test_a_trained_tokenizer_is_kept_and_reads_back(architecture: str, tmp_path) -> None:
    texts = ["def add(a, b): return a + b", "Ünïcode is wörth it."] * 3
    first = tokenizers.train_cached_tokenizer(tmp_path, architecture, texts, 300, texts)
    again = tokenizers.train_cached_tokenizer(tmp_path, architecture, [], 300, texts)
    pair = ("def add", "wörth it")
    assert first(*pair)["input_ids"] == again(*pair)["input_ids"]
    for kind in ("pad", "eos"):
        assert tokenizers.special_token_id(architecture, kind) == getattr(first, f"{kind}_token_id")
    if architecture != "bert":
        assert again.decode(again(texts[1])["input_ids"], skip_special_tokens=True) == texts[1]


@pytest.mark.parametrize(("architecture", "digest"), [("bert", "90db5854"), ("gpt2", "8aceb2c9")])
def test_every_process_trains_the_same_tokenizers(architecture, digest) -> None:
    rows = [f"{random.Random(i).random():.16f} ünïcode w{i:b}".replace("1", "l") for i in range(99)]
    trained = tokenizers.train_tokenizer(architecture, rows, 600).backend_tokenizer
    model = json.dumps(json.loads(trained.to_str())["model"], sort_keys=True)
    assert hashlib.sha256(model.encode()).hexdigest()[:8] == digest


def test_a_tokenizer_without_tokens_or_padding_is_refused(tmp_path) -> None:
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no tokenizer: save it there, or give data.tokenizer"):
        tokenizers.load_tokenizer(str(tmp_path))
    trained = tokenizers.train_tokenizer("bert", ["red"], 60).backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=trained).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no padding token: set pad_token and save it"):
        tokenizers.load_tokenizer(str(tmp_path))


def test_characters_within_words_are_no_special_tokens() -> None:
    trained = tokenizers.train_tokenizer("bert", ["the # quick brown fox"] * 3, 60)
    assert trained.tokenize("##he [SEP]")[:3] == ["#", "#", "h"]
    assert set(trained.all_special_tokens) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


@pytest.mark.parametrize(("name", "size", "least"), [("crammed", 20, 31), ("gpt2", 256, 261)])
def test_a_vocabulary_that_single_characters_overfill_is_reported(name, size, least) -> None:
    sentence = rf"data.vocab_size must be at least {least}, .* got {size}"
    with pytest.raises(UserError, match=sentence):
        tokenizers.train_tokenizer(name, ["the quick brown fox"], size)
    assert len(tokenizers.train_tokenizer(name, ["the quick brown fox"], least)) == least


@pytest.mark.timeout(60)
@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_a_text_of_one_huge_word_is_read_in_bounded_time(architecture: str) -> None:
    texts = ["a" * 500_000, "ab" * 250_000, "two words"]
    tokenizer = tokenizers.train_tokenizer(architecture, texts, 300)
    assert [len(tokenizer(text)["input_ids"]) > 0 for text in texts] == [True] * 3
