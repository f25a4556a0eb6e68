"""From logits to words: pieces, searches, and the errors that are left."""

from functools import cache
from pathlib import Path

import pytest
import torch
from attention_speech.decoding import Search, beam_search, greedy
from attention_speech.errors import ErrorRate, align, by_characters, by_words
from attention_speech.models import Recogniser, Size, lm
from attention_speech.vocabulary import BLANK, BOS, EOS, PIECES, UNKNOWN, Vocabulary, train
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.decoders import ctc_greedy_decode

SIZE = Size(width=8, heads=2, encoder_layers=1, decoder_layers=1, hidden=10,
            channels=(3, 2), kernels=(3, 3), strides=(2, 2), residuals=(False, False))  # fmt: skip
VOCABULARY = 9
PLAIN = Search(beam=1, ctc_weight=0.0, temperature=1.0)


@cache
def network() -> Recogniser:
    torch.manual_seed(1)
    made = Recogniser(SIZE, 12, VOCABULARY).eval()
    with torch.no_grad():
        made.output.w.weight.mul_(4)  # not all the same
        made.output.w.bias[[BLANK, BOS, UNKNOWN]] -= 20
    return made


def encoded(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = 3 * torch.randn(len(lengths), max(lengths), 12)
    return network().encode(x, torch.tensor(lengths))


def by_hand(states: torch.Tensor) -> list[int]:
    """The likeliest next token, one after the other, until the end."""
    found = [BOS]
    for _ in range(states.shape[1]):
        decoded, _ = network().transformer.decode(torch.tensor([found]), states)
        found.append(int(network().output(decoded)[0, -1].argmax()))
        if found[-1] == EOS:
            return found[1:-1]
    return found[1:-1]  # the library's search leaves the last out


@torch.no_grad()
def test_a_beam_of_one_is_greedy_decoding_by_attention() -> None:
    seen = set()
    for length in (5, 17, 40, 61, 30, 22):
        states, number = encoded(length)
        (found,) = beam_search(network(), states, number, PLAIN)
        assert found == by_hand(states)
        seen.add(tuple(found))
    assert len(seen) > 2


@torch.no_grad()
@pytest.mark.parametrize("search", [PLAIN, Search(beam=4), Search(beam=99)])
def test_an_utterance_is_heard_as_if_it_were_alone(search: Search) -> None:
    states, lengths = encoded(44, 20, 9, 1)
    together = beam_search(network(), states, lengths, search)
    for i, number in enumerate(lengths):
        # as many steps for all, so that the longest allows no more than the shorter ones need
        alone = beam_search(network(), states[i : i + 1, :number], number[None], search)
        assert together[i] == alone[0] or len(alone[0]) >= number - 1


@pytest.mark.parametrize("search", [PLAIN, Search(), Search(longest=0.1), Search(beam=2)])
def test_one_state_and_one_frame_are_heard(search: Search) -> None:
    states, lengths = encoded(1, 2)
    assert states.shape[1] == 1
    assert len(beam_search(network(), states, lengths, search)) == 2


@torch.no_grad()
def test_a_search_finds_what_ctc_is_sure_of() -> None:
    made = Recogniser(SIZE, 12, VOCABULARY).eval()
    made.output.w.weight.zero_()
    made.output.w.bias.zero_()  # attention knows nothing
    made.ctc.w.weight.mul_(100)
    made.ctc.w.bias[[BOS, EOS, UNKNOWN]] -= 1e4
    states, lengths = made.encode(3 * torch.randn(3, 60, 12), torch.tensor([60, 33, 60]))
    certain = greedy(made.ctc(states), lengths)
    assert beam_search(made, states, lengths, Search(beam=4, ctc_weight=0.9)) == certain
    assert min(map(len, certain)) > 2


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_greedy_ctc_is_that_of_speechbrain(lengths: list[int]) -> None:
    logits = torch.randn(len(lengths), 12, 4)
    number = torch.tensor(lengths)
    assert greedy(logits, number) == ctc_greedy_decode(logits, number / 12, BLANK)


def literal(reference: str, hypothesis: str) -> int:
    if not reference or not hypothesis:
        return len(reference) + len(hypothesis)
    same = reference[0] == hypothesis[0]
    return min(
        literal(reference[1:], hypothesis) + 1,
        literal(reference, hypothesis[1:]) + 1,
        literal(reference[1:], hypothesis[1:]) + (not same),
    )


@given(st.text("AB", max_size=5), st.text("ABC", max_size=5))
def test_edits_are_the_fewest(reference: str, hypothesis: str) -> None:
    edits = align(reference, hypothesis)
    assert sum(edits[:3]) == literal(reference, hypothesis)
    assert edits.length == len(reference)
    assert edits.insertions - edits.deletions == len(hypothesis) - len(reference)


def test_error_rates_sum_over_batches_and_are_not_averaged() -> None:
    rate = ErrorRate()
    rate.update([by_words("ONE TWO THREE", "ONE THREE")])
    rate.update([by_words("TEN", "TEN ELEVEN"), by_words("", "")])
    found = {name: value.item() for name, value in rate.compute().items()}
    assert found == {"rate": 0.5, "substitutions": 0, "insertions": 1, "deletions": 1}
    rate.reset()
    rate.update([by_characters("AB", "AC")])
    assert rate.compute()["rate"] == 0.5


TEXTS = ["ONE TWO THREE FOUR FIVE", "SIX SEVEN EIGHT NINE ZERO", "TWO TWO ONE"]


@pytest.mark.parametrize(("kind", "size"), [("char", 500), ("unigram", 25)])
def test_a_vocabulary_reads_what_it_writes(kind, size: int, tmp_path) -> None:
    path = train(TEXTS, size, kind, tmp_path)
    vocabulary = Vocabulary(path)
    assert kind == "char" or vocabulary.size == size
    for text in (*TEXTS, "NINE ONE", ""):
        ids = vocabulary.encode(text)
        assert all(PIECES <= i < vocabulary.size for i in ids)
        assert vocabulary.decode([BOS, *ids, EOS, BLANK]) == text
    assert UNKNOWN in vocabulary.encode("QUACK")
    kept = path.stat().st_mtime_ns
    assert train(TEXTS, size, kind, tmp_path).stat().st_mtime_ns == kept
    assert train(TEXTS[:2], size - 1, kind, tmp_path) != path
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("texts", "size", "kind", "sentence"),
    [
        (TEXTS, 9999, "unigram", r"9999 is too large: .* at most \d+ ids"),
        (TEXTS, 8, "unigram", "8 is too small: the characters alone take 20"),
        (TEXTS, 8, "char", "8 is too small"),
        (["", " "], 30, "char", "empty"),
    ],
)
def test_a_size_that_the_texts_do_not_have_is_refused(
    texts, size, kind, sentence, tmp_path
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(texts, size, kind, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_vocabulary_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match="there is no vocabulary"):
        Vocabulary(tmp_path / "absent.model").encode("ONE")
    (tmp_path / "text.model").write_text("ONE")
    with pytest.raises(UserError, match="no SentencePiece model"):
        Vocabulary(tmp_path / "text.model").encode("ONE")


@torch.no_grad()
def test_a_language_model_is_kept_and_heeded(tmp_path) -> None:
    size = lm.LanguageSize(width=8, heads=2, depth=1, hidden=8)
    made = lm.language_network(size, VOCABULARY)
    made.output_proj.layers[2].w.weight.zero_()
    made.output_proj.layers[2].w.bias.copy_(torch.tensor([0.0, 0, 0, 0, 0, 0, 30, 0, 0]))
    path: Path = tmp_path / "language.ckpt"
    vocabulary = Vocabulary(train(["ABCD"], 20, "char", tmp_path))
    assert vocabulary.size == VOCABULARY
    torch.save(lm.save(made, size, vocabulary), path)
    model = lm.load(path, vocabulary)
    states, lengths = encoded(40)
    search = Search(beam=3, ctc_weight=0.0, lm_weight=50.0)
    (found,) = beam_search(network(), states, lengths, search, model)
    assert set(found) == {6}
    assert beam_search(network(), states, lengths, PLAIN, None) != [found]
    with pytest.raises(UserError, match="vocabulary of 9 pieces that is not the recogniser's"):
        lm.load(path, Vocabulary(train(["ABCE"], 20, "char", tmp_path)))
    path.write_text("text")
    with pytest.raises(UserError, match="no language model"):
        lm.load(path, vocabulary)


@pytest.mark.parametrize(
    "arguments", [{"beam": 0}, {"ctc_weight": 1.0}, {"temperature": 0.0}, {"longest": 1.5}]
)
def test_a_search_that_cannot_be_is_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"model\.search"):
        Search(**arguments)
