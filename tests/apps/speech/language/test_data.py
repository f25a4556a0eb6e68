"""Texts beside the transcripts: lines of a file, read from disk."""

import gzip

import pytest
import torch
from attention_speech.language import Transcripts, data
from attention_speech.language.data import PUBLISHED_CORPUS, TextLines, find_corpus
from attention_speech.tokenizer import Tokenizer
from experiment_kit.errors import UserError

from tests.apps.speech.language.test_module import SilentSpeech
from tests.apps.speech.recognizers import TEXTS

LINES = "ONE TWO\n\nNINE\n" + "TWO " * 5 + "\nZERO"


def encode(text: str) -> torch.Tensor:
    return torch.tensor([*text.encode()])


@pytest.mark.parametrize("block", [1, 5, 2**26])
def test_empty_and_long_lines_are_left_out(block, tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "texts.txt"
    for content in (gzip.compress(b"A"), "A".encode("utf-16-le"), b"\xc4 A"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"texts.txt is no text in UTF-8, so unpack or convert"):
            TextLines(path, encode)
    monkeypatch.setattr(data, "_BLOCK", block)
    path.write_text(LINES)
    lines = TextLines(path, encode, max_characters=20)
    assert [bytes(line.tolist()).decode() for line in lines] == ["ONE TWO", "NINE", "ZERO"]
    assert "lines of 20 bytes or more, not trained on: 1\n" in capsys.readouterr().err
    path.write_text("")
    with pytest.raises(UserError, match="has no line of 1 to 999 characters"):
        TextLines(path, encode)


def test_the_published_corpus_is_unpacked_once(tmp_path) -> None:
    with pytest.raises(UserError, match="allpass data librispeech_lm"):
        find_corpus(PUBLISHED_CORPUS, str(tmp_path))
    archive = tmp_path / f"{PUBLISHED_CORPUS}.gz"
    archive.write_bytes(gzip.compress(LINES.encode())[:-9])
    with pytest.raises(UserError, match="cannot be unpacked"):
        find_corpus(PUBLISHED_CORPUS, str(tmp_path))
    archive.write_bytes(gzip.compress(LINES.encode()))
    found = find_corpus(PUBLISHED_CORPUS, str(tmp_path))
    assert found.read_text() == LINES
    archive.unlink()
    assert find_corpus(PUBLISHED_CORPUS, str(tmp_path)) == found
    with pytest.raises(UserError, match=r"absent.* is no file"):
        find_corpus("absent.txt")


def test_transcripts_are_trained_on_with_the_lines_of_a_corpus(tokenizer_file, tmp_path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text(LINES)
    transcripts = Transcripts(SilentSpeech(tokenizer_file), corpus=str(path))
    transcripts.setup("fit")
    tokenizer = Tokenizer(tokenizer_file)
    texts = [tokenizer.decode(ids.tolist()) for ids in transcripts.splits["train"]]
    assert texts == [*TEXTS, "ONE TWO", "NINE", " ".join(["TWO"] * 5), "ZERO"]
    assert len(transcripts.splits["val"]) == len(TEXTS)
    transcripts.setup("test")
    assert len(transcripts.splits["test"]) == len(TEXTS)
