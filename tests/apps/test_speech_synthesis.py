"""Speech of our own: ten words that can be told apart, files that are there whole or not at all."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from attention_speech.synthesis import DIGITS, Speaker, corpus, say, speaker
from experiment_kit.errors import UserError
from torchaudio.functional import melscale_fbanks

BELLS = melscale_fbanks(257, 60, 8000, 24, 16000).numpy()


def features(wave: np.ndarray, pieces: int = 6) -> np.ndarray:
    """Means of log-mel frames in as many pieces of a word, without the word's own mean."""
    window = np.hanning(400)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * window
    mel = np.log(np.abs(np.fft.rfft(frames, 512)) ** 2 @ BELLS + 1e-4)
    loud = mel.mean(1) > mel.mean(1).max() - 5  # the silences have lengths of their own
    first, last = np.flatnonzero(loud)[[0, -1]]
    means = np.stack([part.mean(0) for part in np.array_split(mel[first : last + 1], pieces)])
    return (means - means.mean()).ravel()


def test_the_ten_words_of_an_unseen_speaker_are_told_apart() -> None:
    heard = {
        word: np.mean([features(say([word], speaker(who), seed=who)) for who in range(12)], axis=0)
        for word in DIGITS
    }
    right = 0
    for who in range(12, 18):
        for word in DIGITS:
            found = features(say([word], speaker(who), seed=100 + who))
            right += min(DIGITS, key=lambda other: np.square(heard[other] - found).sum()) == word
    assert right >= 57  # of 60


def test_a_wave_is_a_function_of_words_speaker_and_seed() -> None:
    one = say(["SIX", "ZERO"], speaker(3), seed=5)
    assert np.array_equal(one, say(["SIX", "ZERO"], speaker(3), seed=5))
    others = [say(["SIX", "ONE"], speaker(3), 5), say(["SIX", "ZERO"], speaker(4), 5),
              say(["SIX", "ZERO"], speaker(3), 6)]  # fmt: skip
    assert not any(len(one) == len(other) and np.allclose(one, other) for other in others)
    assert np.isfinite(one).all()
    assert 0.1 < np.abs(one).max() < 1


def test_pitch_and_formants_are_where_the_speaker_has_them() -> None:
    who = Speaker(pitch=100.0, formants=1.0, seconds=3.0, breath=0.0)
    wave = say(["THREE"], who, seed=0)
    # the long IY: its first formant is at 270 Hz, its second at 2290 Hz
    middle = wave[int(0.6 * len(wave)) :][:4096] * np.hanning(4096)
    power = np.abs(np.fft.rfft(middle, 16384)) ** 2
    hertz = np.arange(len(power)) * 16000 / 16384
    second = (hertz > 1500) & (hertz < 2700)
    assert abs(hertz[second][power[second].argmax()] - 2290) < 120
    assert (
        power[(hertz > 200) & (hertz < 350)].sum()
        > 20 * power[(hertz > 600) & (hertz < 1500)].sum()
    )
    lags = np.correlate(middle, middle, "full")[len(middle) - 1 :]
    period = 100 + lags[100:250].argmax()
    assert 16000 / period == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("words", [[], ["TEN"]])
def test_words_that_are_no_digits_are_refused(words) -> None:
    with pytest.raises(ValueError, match="words must be some of ZERO"):
        say(words, speaker(0), 0)


def test_it_is_much_faster_than_real_time() -> None:
    say(["ONE"], speaker(0), 0)
    begin, seconds = time.process_time(), 0.0
    for seed in range(10):
        seconds += len(say(["ONE", "SEVEN", "FOUR"], speaker(seed), seed)) / 16000
    assert time.process_time() - begin < seconds / 20  # 100 times and more on an idle core


def test_a_corpus_has_the_layout_and_is_made_once(tmp_path: Path) -> None:
    folder = corpus.make(tmp_path, "formants", 30)
    files = sorted(folder.rglob("*.flac"))
    assert len(files) == 30 + 3 + 3
    assert {path.relative_to(folder).parts[0] for path in files} == {"train", "dev", "test"}
    speakers = {part: {path.name for path in (folder / part).iterdir()} for part in
                ("train", "dev", "test")}  # fmt: skip
    assert not speakers["train"] & speakers["dev"]
    assert not (speakers["train"] | speakers["dev"]) & speakers["test"]
    told = [line.split(maxsplit=1) for path in folder.rglob("*.trans.txt")
            for line in path.read_text().splitlines()]  # fmt: skip
    assert {name for name, _ in told} == {path.stem for path in files}
    assert all(2 <= len(text.split()) <= 4 and set(text.split()) <= set(DIGITS) for _, text in told)
    for path in files:
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
        assert path.parent.parts[-2:] == tuple(path.stem.split("-")[:2])
    dates = {path: path.stat().st_mtime_ns for path in files}
    assert corpus.make(tmp_path, "formants", 30) == folder
    assert {path: path.stat().st_mtime_ns for path in files} == dates
    assert corpus.make(tmp_path, "formants", 40) != folder


def test_a_corpus_that_was_broken_off_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    calls = []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return say(*arguments)

    monkeypatch.setattr(corpus, "say", broken)
    with pytest.raises(KeyboardInterrupt):
        corpus.make(tmp_path, "formants", 10)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def fake(tmp_path: Path, monkeypatch, script: str) -> None:
    program = tmp_path / "bin" / "espeak-ng"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_espeak_speaks_where_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    wave = 0.1 * torch.randn(2205).numpy()
    soundfile.write(tmp_path / "said.wav", wave, 22050)
    # the program's arguments: -v VOICE -s RATE -p PITCH -w FILE TEXT
    script = f'echo "$2 $9" >> {tmp_path}/log; cp {tmp_path}/said.wav "$8"'
    fake(tmp_path, monkeypatch, script)
    assert corpus.chosen("auto") == corpus.chosen("espeak") == "espeak"
    assert corpus.chosen("formants") == "formants"
    folder = corpus.make(tmp_path, "espeak", 10)
    assert {soundfile.info(path).frames for path in folder.rglob("*.flac")} == {1600}
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == 12
    voices = {line.split()[0] for line in log}
    assert len(voices) == 12
    assert all(voice.startswith("en-") for voice in voices)
    assert {word.upper() for line in log for word in line.split()[1:]} <= set(DIGITS)


def test_an_espeak_that_fails_or_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    fake(tmp_path, monkeypatch, "echo no such voice >&2; exit 1")
    with pytest.raises(UserError, match=r"espeak-ng -v .* failed: no such voice"):
        corpus.make(tmp_path, "espeak", 10)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert corpus.chosen("auto") == "formants"
    with pytest.raises(UserError, match="not installed"):
        corpus.chosen("espeak")
