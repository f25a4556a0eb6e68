"""Reading audio: FLAC, WAV, NIST Sphere, and the headerless files of an4."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from torch import Tensor

_BLOCK = 1 << 16  # frames that are held at a time
RATE = 16000  # samples a second, of all that leaves this file by `load`
# what an4's .raw is; a file with a header says this by itself
_RAW = {"format": "RAW", "subtype": "PCM_16", "endian": "BIG", "samplerate": RATE, "channels": 1}


class UnusableAudio(UserError):
    """A file that gives no speech; `reason` is what others have in common with it."""

    # a loader's worker passes the text alone
    def __init__(self, path: str | Path, reason: str = "") -> None:
        super().__init__(f"{path}: {reason}" if reason else str(path))
        self.reason = reason


class Header(NamedTuple):
    """What a file says of itself."""

    seconds: float
    rate: int
    channels: int


def header(path: str | Path) -> Header:
    """The length, rate and channels of a file that is read to its end, a piece at a time.

    Raises UnusableAudio where it is no audio, has no samples, breaks off, or is damaged.
    """
    with _opened(path) as file:
        if not file.frames:
            raise UnusableAudio(path, "no samples")
        # libsndfile fails where a FLAC file is damaged, and stops early where it breaks off
        found = sum(len(block) for block in file.blocks(_BLOCK, dtype="float32"))
        # of a WAV file that breaks off it says this, and reads what there is
        if found < file.frames or "(should be" in file.extra_info:
            raise UnusableAudio(path, "damaged or truncated audio")
        return Header(file.frames / file.samplerate, file.samplerate, file.channels)


def read(path: str | Path) -> tuple[Tensor, int]:
    """The wave (T,) of a file, float32 in [-1, 1], and its rate; channels are averaged.

    Raises UnusableAudio where it is no audio, has no samples, breaks off, or is not finite.
    """
    with _opened(path) as file:
        samples = file.read(dtype="float32", always_2d=True)  # (T, channels)
        rate, frames = file.samplerate, file.frames
    if not frames:
        raise UnusableAudio(path, "no samples")
    wave = torch.from_numpy(samples).mean(dim=1)
    if len(wave) < frames:
        raise UnusableAudio(path, "damaged or truncated audio")
    if not wave.isfinite().all():
        raise UnusableAudio(path, "samples that are not finite")
    return wave, rate


def resampled(wave: Tensor, rate: int, wanted: int = RATE) -> Tensor:
    """A wave (..., T) at another rate, by a windowed sinc.

    Raises ValueError for a rate that is not positive.

    >>> resampled(torch.zeros(80), 8000).shape
    torch.Size([160])
    """
    if min(rate, wanted) < 1:
        raise ValueError(f"rates must be at least 1, got {rate} and {wanted}")
    if rate == wanted:
        return wave
    from torchaudio.functional import resample

    return resample(wave, rate, wanted)


def load(path: str | Path) -> Tensor:
    """The wave (T,) of a file at 16 kHz; raises what `read` does."""
    return resampled(*read(path))


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    import soundfile

    options: dict[str, Any] = _RAW if Path(path).suffix == ".raw" else {}
    try:
        with soundfile.SoundFile(path, **options) as file:
            try:
                yield file
            except soundfile.LibsndfileError as error:  # the header was right, the rest is not
                raise UnusableAudio(path, "damaged or truncated audio") from error
    except soundfile.LibsndfileError as error:
        there = Path(path).is_file()
        raise UnusableAudio(path, "no audio file" if there else "no such file") from error
