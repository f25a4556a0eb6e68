"""Synthesized words: distinguishable, reproducible, with the speaker's pitch and formants."""

import time

import numpy as np
import pytest
from attention_speech.synthesis import DIGITS, Speaker, draw_speaker, synthesize_words
from torchaudio.functional import melscale_fbanks

FILTERBANK = melscale_fbanks(257, 60, 8000, 24, 16000).numpy()


def average_features(wave: np.ndarray, pieces: int = 6) -> np.ndarray:
    """Average log-mel frames over equal pieces of a word, and subtract the word's own mean."""
    window = np.hanning(400)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * window
    mel = np.log(np.abs(np.fft.rfft(frames, 512)) ** 2 @ FILTERBANK + 1e-4)
    loud = mel.mean(1) > mel.mean(1).max() - 5  # silences differ in length
    first, last = np.flatnonzero(loud)[[0, -1]]
    means = np.stack([part.mean(0) for part in np.array_split(mel[first : last + 1], pieces)])
    return (means - means.mean()).ravel()


def test_the_ten_words_of_an_unseen_speaker_can_be_distinguished() -> None:
    def describe_word(word: str, speaker: int, seed: int) -> np.ndarray:
        return average_features(synthesize_words([word], draw_speaker(speaker), seed))

    means = {word: np.mean([describe_word(word, i, i) for i in range(12)], axis=0)
             for word in DIGITS}  # fmt: skip
    correct = 0
    for speaker in range(12, 18):
        for word in DIGITS:
            x = describe_word(word, speaker, 100 + speaker)
            correct += min(DIGITS, key=lambda other: np.square(means[other] - x).sum()) == word
    assert correct >= 57  # of 60


def test_a_wave_is_a_function_of_words_speaker_and_seed() -> None:
    one = synthesize_words(["SIX", "ZERO"], draw_speaker(3), seed=5)
    assert np.array_equal(one, synthesize_words(["SIX", "ZERO"], draw_speaker(3), seed=5))
    for words, speaker, seed in ((["SIX", "ONE"], 3, 5), (["SIX", "ZERO"], 4, 5),
                                 (["SIX", "ZERO"], 3, 6)):  # fmt: skip
        other = synthesize_words(words, draw_speaker(speaker), seed)
        assert len(one) != len(other) or not np.allclose(one, other)
    assert np.isfinite(one).all()
    assert 0.1 < np.abs(one).max() < 1


def test_pitch_and_formants_are_those_of_the_speaker() -> None:
    speaker = Speaker(pitch=100.0, formants=1.0, seconds=3.0, breath=0.0)
    wave = synthesize_words(["THREE"], speaker, seed=0)
    # the long IY: its first formant is at 270 Hz, its second at 2290 Hz
    middle = wave[int(0.6 * len(wave)) :][:4096] * np.hanning(4096)
    power = np.abs(np.fft.rfft(middle, 16384)) ** 2
    hertz = np.arange(len(power)) * 16000 / 16384
    second = (hertz > 1500) & (hertz < 2700)
    assert abs(hertz[second][power[second].argmax()] - 2290) < 120
    first, between = (hertz > 200) & (hertz < 350), (hertz > 600) & (hertz < 1500)
    assert power[first].sum() > 20 * power[between].sum()
    correlation = np.correlate(middle, middle, "full")[len(middle) - 1 :]
    period = 100 + correlation[100:250].argmax()
    assert 16000 / period == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("words", [[], ["TEN"]])
def test_words_that_are_no_digits_are_refused(words) -> None:
    with pytest.raises(ValueError, match="words must be some of ZERO"):
        synthesize_words(words, draw_speaker(0), 0)


def test_synthesis_is_much_faster_than_real_time() -> None:
    synthesize_words(["ONE"], draw_speaker(0), 0)
    begin, seconds = time.process_time(), 0.0
    for seed in range(10):
        wave = synthesize_words(["ONE", "SEVEN", "FOUR"], draw_speaker(seed), seed)
        seconds += len(wave) / 16000
    assert time.process_time() - begin < seconds / 20  # 100 times and more on an idle core
