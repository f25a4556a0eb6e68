"""Read audio files: FLAC, WAV, NIST Sphere, and the headerless .raw files of an4."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from torch import Tensor

SAMPLE_RATE = 16_000  # Hz, of every wave that `load_audio` returns
_BLOCK = 1 << 16  # frames in memory at a time
# the format of an4's .raw files, which have no header
_RAW = dict(format="RAW", subtype="PCM_16", endian="BIG", samplerate=SAMPLE_RATE, channels=1)


class UnusableAudio(UserError):
    """Error for a file without usable speech; `reason` is the message without the path."""

    # a worker of a DataLoader re-raises an error from its text alone
    def __init__(self, path: str | Path, reason: str = "") -> None:
        super().__init__(f"{path}: {reason}" if reason else str(path))
        self.reason = reason


class AudioInfo(NamedTuple):
    """Length, sample rate and number of channels of an audio file."""

    seconds: float
    sample_rate: int
    channels: int


def probe_audio(path: str | Path) -> AudioInfo:
    """Return the length, rate and channels of a file, after reading it to its end in blocks.

    Raises UnusableAudio for a file that is no audio, has no samples, or is truncated or damaged.
    """
    with _open_audio(path) as file:
        if not file.frames:
            raise UnusableAudio(path, "no samples")
        # libsndfile raises on a damaged FLAC file, and stops early in a truncated one
        frames = sum(len(block) for block in file.blocks(_BLOCK, dtype="float32"))
        # libsndfile reads what there is in a truncated WAV file, and notes it in extra_info
        if frames < file.frames or "(should be" in file.extra_info:
            raise UnusableAudio(path, "damaged or truncated audio")
        return AudioInfo(file.frames / file.samplerate, file.samplerate, file.channels)


def read_audio(path: str | Path) -> tuple[Tensor, int]:
    """Return the wave (T,) of a file, float32 in [-1, 1], averaged over channels, and its rate.

    Raises UnusableAudio for a file that is no audio, has no samples, is truncated, or has samples
    that are not finite.
    """
    with _open_audio(path) as file:
        samples = file.read(dtype="float32", always_2d=True)  # (T, channels)
        sample_rate, frames = file.samplerate, file.frames
    if not frames:
        raise UnusableAudio(path, "no samples")
    wave = torch.from_numpy(samples).mean(dim=1)
    if len(wave) < frames:
        raise UnusableAudio(path, "damaged or truncated audio")
    if not wave.isfinite().all():
        raise UnusableAudio(path, "samples that are not finite")
    return wave, sample_rate


def resample_wave(wave: Tensor, sample_rate: int, new_rate: int = SAMPLE_RATE) -> Tensor:
    """Resample a wave (..., T) with a windowed sinc; raises ValueError for a rate below 1."""
    if min(sample_rate, new_rate) < 1:
        raise ValueError(f"rates must be at least 1, got {sample_rate} and {new_rate}")
    if sample_rate == new_rate:
        return wave
    from torchaudio.functional import resample

    return resample(wave, sample_rate, new_rate)


def load_audio(path: str | Path) -> Tensor:
    """Return the wave (T,) of a file at 16 kHz; raises UnusableAudio as `read_audio` does."""
    return resample_wave(*read_audio(path))


@contextmanager
def _open_audio(path: str | Path) -> Iterator[Any]:
    import soundfile

    options: dict[str, Any] = _RAW if Path(path).suffix == ".raw" else {}
    try:
        with soundfile.SoundFile(path, **options) as file:
            try:
                yield file
            except soundfile.LibsndfileError as error:  # the header is valid, the samples are not
                raise UnusableAudio(path, "damaged or truncated audio") from error
    except soundfile.LibsndfileError as error:
        exists = Path(path).is_file()
        raise UnusableAudio(path, "no audio file" if exists else "no such file") from error
