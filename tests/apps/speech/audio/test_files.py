"""Audio files of all formats, and files that only look like audio."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attention_speech.audio import (
    SAMPLE_RATE,
    UnusableAudio,
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
    "no byte": (lambda: write_bytes("a.flac", b""), "no audio file"),
    "absent": (lambda: Path("a.flac"), "no such file"),
    "zero length": (lambda: write_audio("a.wav", np.zeros(0)), "no samples"),
    "half a flac": (lambda: truncate_file(write_long_flac(), 0.5), DAMAGED),
    "most of a flac": (lambda: truncate_file(write_long_flac(), 0.99), DAMAGED),
    "a flac damaged in its middle": (lambda: damage_file(write_long_flac()), DAMAGED),
    "empty raw": (lambda: write_bytes("a.raw", b""), "no samples"),
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
    with pytest.raises(ValueError, match="rates must be at least 1"):
        resample_wave(torch.zeros(3), 0)


def test_sphere_and_raw_files_of_an4_are_read() -> None:
    wave = (make_tone() * 32767).astype(np.int16)
    sphere = write_audio("a.nist", wave, format="NIST", subtype="PCM_16").rename("a.sph")
    raw = write_bytes("a.raw", wave.astype(">i2").tobytes())
    for path in (sphere, raw):
        assert probe_audio(path) == (0.2, SAMPLE_RATE, 1)
        np.testing.assert_array_equal((load_audio(path).numpy() * 32768).round(), wave)
