"""Audio files of any format of libsndfile, and their match with transcripts."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from experiment_kit.run import hold_lock, write_atomically
from rich.console import Console
from rich.progress import track
from torch import Tensor

CACHE_DIR = Path("runs/data/speech")
SAMPLE_RATE = 16_000  # Hz, of every wave that `load_audio` returns
_BLOCK = 1 << 16  # frames in memory at a time
_VERSION = 2  # the manifest's content; another version goes into another folder
_MAX_NAMES = 3  # utterances that a note names
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
    """Resample a wave (..., T) with a windowed sinc."""
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


class Transcript(NamedTuple):
    """The words of an utterance, in upper case, and its speaker."""

    text: str
    speaker: str


class Utterance(NamedTuple):
    """Transcribed speech: the files of `path` one after the other, with silence between them."""

    name: str
    path: tuple[str, ...]
    seconds: float
    text: str
    speaker: str


class Manifest(NamedTuple):
    """The usable utterances, sorted by name, and notes on those left out or converted."""

    utterances: list[Utterance]
    notes: list[str]


def build_manifest(
    name: str, audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]
) -> Manifest:
    """Match audio files with transcripts; both are keyed by utterance name.

    Left out, counted and named in the notes: audio without transcript and the reverse, empty
    transcripts, and files that `probe_audio` refuses. Notes also count files of another sample
    rate and with several channels. Files are read by as many threads as torch has, and read again
    only when their size or date changes: the manifest is cached in `runs/data/speech`.

    Raises UserError where no utterance is left.
    """
    path = CACHE_DIR / f"{name}-{_hash_inputs(audio, transcripts)}" / "manifest.json"
    with hold_lock(path.parent.with_name(f"{path.parent.name}.lock")):
        if not path.exists():
            write_atomically(path, json.dumps(_probe_files(name, audio, transcripts)) + "\n")
    content = json.loads(path.read_text())
    notes = [
        f"{describe_utterances(kind, names)}{suffix}"
        for group, suffix in (("left out", ": left out"), ("converted", ""))
        for kind, names in content[group].items()
        if names
    ]
    if not content["utterances"]:
        raise UserError("; ".join([f"{name} has no utterance that can be used", *notes]))
    rows = content["utterances"]
    return Manifest([Utterance(key, (file,), *rest) for key, file, *rest in rows], notes)


def _hash_inputs(audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]) -> str:
    """Hash names, paths, sizes and dates of the files, and all transcripts, to 16 hex digits."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for key, path in sorted(audio.items()):
        stat = path.stat() if path.exists() else None  # a symbolic link may be broken
        row = (key, str(path.absolute()), stat and (stat.st_size, stat.st_mtime_ns))
        digest.update(f"{row}\n".encode())
    for pair in sorted(transcripts.items()):
        digest.update(f"{pair}\n".encode())
    return digest.hexdigest()[:16]


def _probe_files(
    name: str, audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]
) -> dict[str, Any]:
    """Return rows of utterances, and the names of those left out and converted by reason."""
    both = {key: audio[key] for key in sorted(audio.keys() & transcripts.keys())}
    rows: list[tuple[str, str, float, str, str]] = []
    left_out: dict[str, list[str]] = {}
    converted: dict[str, list[str]] = {}
    console = Console(stderr=True)
    # libsndfile releases the interpreter's lock
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = pool.map(_probe_or_reason, both.values())
        silent = not console.is_terminal
        bar = track(results, f"{name}: audio", len(both), console=console, disable=silent)
        for key, info in zip(both, bar, strict=True):
            text, speaker = transcripts[key]
            if isinstance(info, str) or not text.strip():
                reason = info if isinstance(info, str) else "an empty transcript"
                left_out.setdefault(reason, []).append(key)
                continue
            rows.append((key, str(both[key].absolute()), info.seconds, text, speaker))
            if info.sample_rate != SAMPLE_RATE:
                kind = f"{info.sample_rate} Hz, resampled to {SAMPLE_RATE} Hz"
                converted.setdefault(kind, []).append(key)
            if info.channels > 1:
                converted.setdefault(f"{info.channels} channels, averaged", []).append(key)
    left_out["audio but no transcript"] = sorted(audio.keys() - transcripts.keys())
    left_out["a transcript but no audio"] = sorted(transcripts.keys() - audio.keys())
    return {"utterances": rows, "left out": left_out, "converted": converted}


def _probe_or_reason(path: Path) -> AudioInfo | str:
    try:
        return probe_audio(path)
    except UnusableAudio as error:
        return error.reason


def describe_utterances(kind: str, names: Sequence[str]) -> str:
    """Return the number of utterances of a kind, and the first names."""
    first = ", ".join(names[:_MAX_NAMES]) + ", ..." * (len(names) > _MAX_NAMES)
    return f"{len(names)} utterance{'s' * (len(names) != 1)} with {kind} ({first})"
