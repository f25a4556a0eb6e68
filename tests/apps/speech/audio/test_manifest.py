"""Manifests: unusable utterances are counted and left out; files are read once."""

from pathlib import Path

import numpy as np
import pytest
from attention_speech.audio import Transcript, build_manifest, manifest, probe_audio
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import make_tone, truncate_file, write_audio, write_bytes

pytestmark = pytest.mark.usefixtures("workdir")


def write_mixed_corpus() -> tuple[dict[str, Path], dict[str, Transcript]]:
    audio = {
        "a-1": write_audio("a-1.flac"),
        "a-2": write_audio("a-2.flac", make_tone(rate=8000), rate=8000),
        "a-3": write_audio("a-3.wav", np.zeros((1600, 2))),
        "b-1": write_bytes("b-1.flac", b"text"),
        "b-2": write_audio("b-2.wav", np.zeros(0)),
        "b-3": truncate_file(write_audio("b-3.flac"), 0.6),
        "b-4": write_audio("b-4.flac"),
        "c-1": write_audio("c-1.flac"),
    }
    texts = {name: Transcript("ONE TWO", name[0]) for name in audio if name != "c-1"}
    texts["b-4"] = Transcript(" ", "b")
    return audio, texts | {f"d-{i}": Transcript("LOST", "d") for i in range(5)}


def test_unusable_utterances_are_counted_named_and_left_out() -> None:
    found = build_manifest("tiny", *write_mixed_corpus())
    assert [one.name for one in found.utterances] == ["a-1", "a-2", "a-3"]
    assert found.utterances[0] == ("a-1", (str(Path("a-1.flac").absolute()),), 0.2, "ONE TWO", "a")
    assert sorted(found.notes) == [
        "1 utterance with 2 channels, averaged (a-3)",
        "1 utterance with 8000 Hz, resampled to 16000 Hz (a-2)",
        "1 utterance with an empty transcript (b-4): left out",
        "1 utterance with audio but no transcript (c-1): left out",
        "1 utterance with damaged or truncated audio (b-3): left out",
        "1 utterance with no audio file (b-1): left out",
        "1 utterance with no samples (b-2): left out",
        "5 utterances with a transcript but no audio (d-0, d-1, d-2, ...): left out",
    ]


def test_files_are_read_once_until_one_changes(monkeypatch) -> None:
    audio, texts = write_mixed_corpus()
    found, probed = build_manifest("tiny", audio, texts), []

    def count_probe(path):
        probed.append(path.name)
        return probe_audio(path)

    monkeypatch.setattr(manifest, "probe_audio", count_probe)
    assert build_manifest("tiny", audio, texts) == found
    assert not probed
    assert len([path for path in manifest.CACHE_DIR.iterdir() if path.is_dir()]) == 1
    write_audio("b-1.flac")
    changed = build_manifest("tiny", audio, texts)
    assert [one.name for one in changed.utterances] == ["a-1", "a-2", "a-3", "b-1"]
    assert len(probed) == 7
    texts["b-4"] = Transcript("NINE", "b")
    assert build_manifest("tiny", audio, texts).utterances[-1].text == "NINE"
    audio["a-1"].unlink()  # a deleted file is noticed too
    assert "no such file" in " ".join(build_manifest("tiny", audio, texts).notes)


def test_a_manifest_without_utterances_is_an_error() -> None:
    audio = {"a": write_bytes("a.flac", b"text")}
    for _ in range(2):  # also from the cache
        with pytest.raises(UserError, match=r"no utterance that can be used; .*no audio file \(a"):
            build_manifest("tiny", audio, {"a": Transcript("ONE", "a")})
    with pytest.raises(UserError, match=r"tiny has no utterance that can be used$"):
        build_manifest("tiny", {}, {})
