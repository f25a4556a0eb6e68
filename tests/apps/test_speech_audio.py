"""Files that are audio and files that only look like it; utterances found once, troubles told."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from attention_speech.audio import RATE, Transcript, UnusableAudio, header, load, matched, read
from attention_speech.audio.files import resampled
from attention_speech.audio.manifest import CACHE
from experiment_kit.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tone(seconds: float = 0.2, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def written(name: str, wave: np.ndarray | None = None, rate: int = RATE, **options) -> Path:
    soundfile.write(name, tone(rate=rate) if wave is None else wave, rate, **options)
    return Path(name)


def broken(name: str, share: float) -> Path:
    whole = written(name, tone(2.0)).read_bytes()
    Path(name).write_bytes(whole[: int(share * len(whole))])
    return Path(name)


def scarred(name: str) -> Path:
    content = bytearray(written(name, tone(2.0)).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    Path(name).write_bytes(content)
    return Path(name)


def with_text(name: str, content: bytes) -> Path:
    Path(name).write_bytes(content)
    return Path(name)


BAD = {
    "text named .flac": (lambda: with_text("a.flac", b"HE HOPED THERE\n"), "no audio file"),
    "no byte": (lambda: with_text("a.flac", b""), "no audio file"),
    "not there": (lambda: Path("a.flac"), "no such file"),
    "zero length": (lambda: written("a.wav", np.zeros(0)), "no samples"),
    "half a flac": (lambda: broken("a.flac", 0.5), "damaged or truncated audio"),
    "most of a flac": (lambda: broken("a.flac", 0.99), "damaged or truncated audio"),
    "a flac damaged in its middle": (lambda: scarred("a.flac"), "damaged or truncated audio"),
    "empty raw": (lambda: with_text("a.raw", b""), "no samples"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("reader", [header, read])
def test_what_is_no_audio_has_a_reason(case, reader) -> None:
    make, reason = BAD[case]
    path = make()
    with pytest.raises(UnusableAudio, match=f"^{path}: {reason}$") as caught:
        reader(path)
    assert caught.value.reason == reason
    assert isinstance(caught.value, UserError)


def test_a_wav_file_that_breaks_off_is_found_by_its_header() -> None:
    with pytest.raises(UnusableAudio, match="damaged or truncated audio"):
        header(broken("a.wav", 0.5))
    assert header(broken("a.wav", 1.0)).seconds == 2.0


def test_samples_that_are_not_finite_are_refused() -> None:
    path = written("a.wav", np.array([0.0, np.nan, 0.5]), subtype="FLOAT")
    with pytest.raises(UnusableAudio, match="samples that are not finite"):
        read(path)


def test_stereo_is_averaged_and_eight_kilohertz_are_resampled() -> None:
    left, right = tone(), tone(hertz=700.0)
    path = written("a.wav", np.stack([left, right], 1), subtype="FLOAT")
    assert header(path) == (0.2, RATE, 2)
    wave, rate = read(path)
    assert rate == RATE
    assert wave.dtype == torch.float32
    np.testing.assert_allclose(wave.numpy(), (left + right) / 2, atol=1e-6)
    slow = load(written("b.wav", rate=8000))
    assert slow.shape == (3200,)
    np.testing.assert_allclose(slow[200:-200].numpy(), tone()[200:-200], atol=0.01)
    assert resampled(torch.zeros(441), 44100).shape == (160,)
    with pytest.raises(ValueError, match="rates must be at least 1"):
        resampled(torch.zeros(3), 0)


def test_sphere_and_raw_files_of_an4_are_read() -> None:
    wave = (tone() * 32767).astype(np.int16)
    sphere = written("a.nist", wave, format="NIST", subtype="PCM_16").rename("a.sph")
    raw = with_text("a.raw", wave.astype(">i2").tobytes())
    for path in (sphere, raw):
        assert header(path) == (0.2, RATE, 1)
        np.testing.assert_array_equal((load(path).numpy() * 32768).round(), wave)


def corpus() -> tuple[dict[str, Path], dict[str, Transcript]]:
    audio = {
        "a-1": written("a-1.flac"),
        "a-2": written("a-2.flac", rate=8000),
        "a-3": written("a-3.wav", np.zeros((1600, 2))),
        "b-1": with_text("b-1.flac", b"text"),
        "b-2": written("b-2.wav", np.zeros(0)),
        "b-3": broken("b-3.flac", 0.6),
        "b-4": written("b-4.flac"),
        "c-1": written("c-1.flac"),
    }
    texts = {name: Transcript("ONE TWO", name[0]) for name in audio if name != "c-1"}
    texts["b-4"] = Transcript(" ", "b")
    return audio, texts | {f"d-{i}": Transcript("LOST", "d") for i in range(5)}


def test_troubles_are_counted_named_and_left_out() -> None:
    found = matched("tiny", *corpus())
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
    assert matched("tiny", *corpus()) == found


def test_files_are_looked_into_once_until_one_changes(monkeypatch) -> None:
    audio, texts = corpus()
    found, looked = matched("tiny", audio, texts), []

    def look(path):
        looked.append(path.name)
        return header(path)

    monkeypatch.setattr("attention_speech.audio.manifest.header", look)
    assert matched("tiny", audio, texts) == found
    assert not looked
    assert len([path for path in CACHE.iterdir() if path.is_dir()]) == 1
    written("b-1.flac")
    changed = matched("tiny", audio, texts)
    assert [one.name for one in changed.utterances] == ["a-1", "a-2", "a-3", "b-1"]
    assert len(looked) == 7
    texts["b-4"] = Transcript("NINE", "b")
    assert matched("tiny", audio, texts).utterances[-1].text == "NINE"
    audio["a-1"].unlink()  # a file that goes away is seen, too
    assert "no such file" in " ".join(matched("tiny", audio, texts).notes)


def test_nothing_left_is_one_sentence() -> None:
    audio = {"a": with_text("a.flac", b"text")}
    for _ in range(2):  # also from the cache
        with pytest.raises(
            UserError, match=r"no utterance that can be used; .*no audio file \(a\)"
        ):
            matched("tiny", audio, {"a": Transcript("ONE", "a")})
    with pytest.raises(UserError, match=r"tiny has no utterance that can be used$"):
        matched("tiny", {}, {})
