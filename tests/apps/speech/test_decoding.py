"""Greedy CTC, the beam search of CTC, attention and a language model, and error rates."""

from functools import cache

import torch
from attention_speech.decoding import BeamSearchConfig, beam_search, greedy_ctc_decode
from attention_speech.models import lm
from attention_speech.models.recognizer import Recognizer, RecognizerConfig
from attention_speech.tokenizer import BLANK, BOS, EOS, UNK
from attention_speech.wer import ErrorRate, count_character_edits, count_edits, count_word_edits
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.decoders import ctc_greedy_decode
from speechbrain.utils.edit_distance import count_ops, op_table

CONFIG = RecognizerConfig(dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
                          ffn_dim=10, channels=(3, 2), kernels=(3, 3), strides=(2, 2),
                          residuals=(False, False))  # fmt: skip
VOCAB_SIZE = 9
ATTENTION_ALONE = BeamSearchConfig(beam_size=1, ctc_weight=0.0, temperature=1.0)


@cache
def make_network() -> Recognizer:
    torch.manual_seed(1)
    network = Recognizer(CONFIG, 12, VOCAB_SIZE).eval()
    with torch.no_grad():
        network.output.w.weight.mul_(4)  # so that tokens differ
        network.output.w.bias[[BLANK, BOS, UNK]] -= 20
    return network


def encode_noise(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = 3 * torch.randn(len(lengths), max(lengths), 12)
    return make_network().encode(x, torch.tensor(lengths))


def decode_step_by_step(states: torch.Tensor) -> list[int]:
    """Return the most likely next token, one after the other, until the end."""
    ids = [BOS]
    for _ in range(states.shape[1]):
        decoded, _ = make_network().transformer.decode(torch.tensor([ids]), states)
        ids.append(int(make_network().output(decoded)[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return ids[1:-1]  # without an end, speechbrain's search drops the last token


@torch.no_grad()
def test_a_beam_of_one_is_greedy_decoding_by_attention() -> None:
    seen = set()
    for length in (5, 17, 40, 61, 30, 22):
        states, lengths = encode_noise(length)
        (found,) = beam_search(make_network(), states, lengths, ATTENTION_ALONE)
        assert found == decode_step_by_step(states)
        seen.add(tuple(found))
    assert len(seen) > 2


@torch.no_grad()
def test_a_search_finds_what_ctc_is_sure_of() -> None:
    network = Recognizer(CONFIG, 12, VOCAB_SIZE).eval()
    network.output.w.weight.zero_()
    network.output.w.bias.zero_()  # attention prefers no token
    network.ctc.w.weight.mul_(100)
    network.ctc.w.bias[[BOS, EOS, UNK]] -= 1e4
    states, lengths = network.encode(3 * torch.randn(3, 60, 12), torch.tensor([60, 33, 60]))
    certain = greedy_ctc_decode(network.ctc(states), lengths)
    config = BeamSearchConfig(beam_size=4, ctc_weight=0.9)
    assert beam_search(network, states, lengths, config) == certain
    assert min(map(len, certain)) > 2


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_greedy_ctc_is_that_of_speechbrain(lengths: list[int]) -> None:
    logits = torch.randn(len(lengths), 12, 4)
    counts = torch.tensor(lengths)
    assert greedy_ctc_decode(logits, counts) == ctc_greedy_decode(logits, counts / 12, BLANK)


@torch.no_grad()
def test_a_search_follows_the_language_model() -> None:
    config = lm.LanguageModelConfig(dim=8, num_heads=2, num_layers=1, ffn_dim=8)
    model = lm.build_language_model(config, VOCAB_SIZE).eval()
    model.output_proj.layers[2].w.weight.zero_()
    model.output_proj.layers[2].w.bias.copy_(torch.tensor([0.0, 0, 0, 0, 0, 0, 30, 0, 0]))
    states, lengths = encode_noise(40)
    search = BeamSearchConfig(beam_size=3, ctc_weight=0.0, lm_weight=50.0)
    (found,) = beam_search(make_network(), states, lengths, search, model)
    assert set(found) == {6}
    assert beam_search(make_network(), states, lengths, ATTENTION_ALONE, None) != [found]


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
