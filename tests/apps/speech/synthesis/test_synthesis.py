"""Synthesized words and their corpus: distinguishable, reproducible, written whole or not."""

from pathlib import Path

import numpy as np
import soundfile
from attention_speech.synthesis import corpus
from attention_speech.synthesis.formants import DIGITS, draw_speaker, synthesize_words
from torchaudio.functional import melscale_fbanks

FILTERBANK = melscale_fbanks(257, 60, 8000, 24, 16000).numpy()


def average_features(wave: np.ndarray, pieces: int = 6) -> np.ndarray:
    """Average log-mel frames over equal pieces of a word, and subtract the word's own mean."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * np.hanning(400)
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
    assert correct >= 57  # out of 60


def test_a_corpus_has_the_layout_of_librispeech(tmp_path: Path) -> None:
    folder = corpus.make_corpus(tmp_path, 30)
    files = sorted(folder.rglob("*.flac"))
    assert len(files) == 30 + 3 + 3
    assert {path.relative_to(folder).parts[0] for path in files} == {"train", "dev", "test"}
    speakers = [path.name for part in folder.iterdir() if part.is_dir() for path in part.iterdir()]
    assert len(speakers) == len(set(speakers))
    lines = [line.split(maxsplit=1) for path in folder.rglob("*.trans.txt")
             for line in path.read_text().splitlines()]  # fmt: skip
    assert {name for name, _ in lines} == {path.stem for path in files}
    for _, text in lines:
        assert 2 <= len(text.split()) <= 4
        assert set(text.split()) <= set(DIGITS)
    for path in files:
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
        assert path.parent.parts[-2:] == tuple(path.stem.split("-")[:2])
    assert corpus.make_corpus(tmp_path, 40) != folder
