"""The synthetic corpus: its layout, written whole or not at all, by either engine."""

import os
from pathlib import Path

import pytest
import soundfile
import torch
from attention_speech.synthesis import DIGITS, corpus, synthesize_words
from experiment_kit.errors import UserError


def test_a_corpus_has_the_layout_and_is_written_once(tmp_path: Path) -> None:
    folder = corpus.make_corpus(tmp_path, "formants", 30)
    files = sorted(folder.rglob("*.flac"))
    assert len(files) == 30 + 3 + 3
    assert {path.relative_to(folder).parts[0] for path in files} == {"train", "dev", "test"}
    train, dev, test = (
        {path.name for path in (folder / part).iterdir()} for part in ("train", "dev", "test")
    )
    assert not train & dev
    assert not (train | dev) & test
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
    dates = {path: path.stat().st_mtime_ns for path in files}
    assert corpus.make_corpus(tmp_path, "formants", 30) == folder
    assert {path: path.stat().st_mtime_ns for path in files} == dates
    assert corpus.make_corpus(tmp_path, "formants", 40) != folder


def test_an_interrupted_corpus_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    calls = []

    def synthesize_until_interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return synthesize_words(*arguments)

    monkeypatch.setattr(corpus, "synthesize_words", synthesize_until_interrupt)
    with pytest.raises(KeyboardInterrupt):
        corpus.make_corpus(tmp_path, "formants", 10)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def install_espeak(tmp_path: Path, monkeypatch, script: str) -> None:
    """Put a shell script in the place of espeak-ng."""
    program = tmp_path / "bin" / "espeak-ng"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_espeak_is_used_if_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    wave = 0.1 * torch.randn(2205).numpy()
    soundfile.write(tmp_path / "said.wav", wave, 22050)
    # the program's arguments: -v VOICE -s RATE -p PITCH -w FILE TEXT
    script = f'echo "$2 $9" >> {tmp_path}/log; cp {tmp_path}/said.wav "$8"'
    install_espeak(tmp_path, monkeypatch, script)
    assert corpus.resolve_engine("auto") == corpus.resolve_engine("espeak") == "espeak"
    assert corpus.resolve_engine("formants") == "formants"
    folder = corpus.make_corpus(tmp_path, "espeak", 10)
    assert {soundfile.info(path).frames for path in folder.rglob("*.flac")} == {1600}
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == 12
    voices = {line.split()[0] for line in log}
    assert len(voices) == 12
    assert all(voice.startswith("en-") for voice in voices)
    assert {word.upper() for line in log for word in line.split()[1:]} <= set(DIGITS)


def test_an_absent_or_failing_espeak_is_an_error(tmp_path: Path, monkeypatch) -> None:
    install_espeak(tmp_path, monkeypatch, "echo no such voice >&2; exit 1")
    with pytest.raises(UserError, match=r"espeak-ng -v .* failed: no such voice"):
        corpus.make_corpus(tmp_path, "espeak", 10)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert corpus.resolve_engine("auto") == "formants"
    with pytest.raises(UserError, match="not installed"):
        corpus.resolve_engine("espeak")
