"""Audio files of all formats, files that only look like audio, and manifests of both."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attention_speech.audio import (
    CACHE_DIR,
    SAMPLE_RATE,
    Transcript,
    UnusableAudio,
    build_manifest,
    load_audio,
    probe_audio,
    read_audio,
    resample_wave,
)
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import make_tone, truncate_file, write_audio, write_bytes

pytestmark = pytest.mark.usefixtures("workdir")


def damage_file(path: Path) -> Path:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    return write_bytes(path, content)


def write_long_flac() -> Path:
    return write_audio("a.flac", make_tone(2.0))


DAMAGED = "damaged or truncated audio"
UNUSABLE = {
    "text named .flac": (lambda: write_bytes("a.flac", b"HE HOPED THERE\n"), "no audio file"),
    "absent": (lambda: Path("a.flac"), "no such file"),
    "zero length": (lambda: write_audio("a.wav", np.zeros(0)), "no samples"),
    "most of a flac": (lambda: truncate_file(write_long_flac(), 0.99), DAMAGED),
    "a flac damaged in its middle": (lambda: damage_file(write_long_flac()), DAMAGED),
}


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.parametrize("reader", [probe_audio, read_audio])
def test_an_unusable_file_is_refused_with_a_reason(case, reader) -> None:
    make, reason = UNUSABLE[case]
    path = make()
    with pytest.raises(UnusableAudio, match=f"^{path}: {reason}$") as caught:
        reader(path)
    assert caught.value.reason == reason
    assert isinstance(caught.value, UserError)


def test_a_truncated_wav_file_is_found_by_its_header() -> None:
    assert probe_audio(write_audio("a.wav", make_tone(2.0))).seconds == 2.0
    with pytest.raises(UnusableAudio, match="damaged or truncated audio"):
        probe_audio(truncate_file(Path("a.wav"), 0.5))


def test_samples_that_are_not_finite_are_refused() -> None:
    path = write_audio("a.wav", np.array([0.0, np.nan, 0.5]), subtype="FLOAT")
    with pytest.raises(UnusableAudio, match="samples that are not finite"):
        read_audio(path)


def test_stereo_is_averaged_and_eight_kilohertz_are_resampled() -> None:
    left, right = make_tone(), make_tone(hertz=700.0)
    path = write_audio("a.wav", np.stack([left, right], 1), subtype="FLOAT")
    assert probe_audio(path) == (0.2, SAMPLE_RATE, 2)
    wave, rate = read_audio(path)
    assert rate == SAMPLE_RATE
    assert wave.dtype == torch.float32
    np.testing.assert_allclose(wave.numpy(), (left + right) / 2, atol=1e-6)
    slow = load_audio(write_audio("b.wav", make_tone(rate=8000), rate=8000))
    assert slow.shape == (3200,)
    np.testing.assert_allclose(slow[200:-200].numpy(), make_tone()[200:-200], atol=0.01)
    assert resample_wave(torch.zeros(441), 44100).shape == (160,)


def test_sphere_and_raw_files_of_an4_are_read() -> None:
    wave = (make_tone() * 32767).astype(np.int16)
    sphere = write_audio("a.nist", wave, format="NIST", subtype="PCM_16").rename("a.sph")
    raw = write_bytes("a.raw", wave.astype(">i2").tobytes())
    for path in (sphere, raw):
        assert probe_audio(path) == (0.2, SAMPLE_RATE, 1)
        np.testing.assert_array_equal((load_audio(path).numpy() * 32768).round(), wave)


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

    monkeypatch.setattr("attention_speech.audio.probe_audio", count_probe)
    assert build_manifest("tiny", audio, texts) == found
    assert not probed
    assert len([path for path in CACHE_DIR.iterdir() if path.is_dir()]) == 1
    write_audio("b-1.flac")
    changed = build_manifest("tiny", audio, texts)
    assert [one.name for one in changed.utterances] == ["a-1", "a-2", "a-3", "b-1"]
    assert len(probed) == 7
    audio["a-1"].unlink()  # a deleted file is noticed too
    assert "no such file" in " ".join(build_manifest("tiny", audio, texts).notes)


def test_a_manifest_without_utterances_is_an_error() -> None:
    audio = {"a": write_bytes("a.flac", b"text")}
    with pytest.raises(UserError, match=r"no utterance that can be used; .*no audio file \(a"):
        build_manifest("tiny", audio, {"a": Transcript("ONE", "a")})
