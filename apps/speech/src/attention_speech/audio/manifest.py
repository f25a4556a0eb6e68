"""Match audio files with transcripts; every file is read once, and the result is cached."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from experiment_kit.run import hold_lock, write_atomically
from rich.console import Console
from rich.progress import track

from attention_speech.audio.files import SAMPLE_RATE, AudioInfo, UnusableAudio, probe_audio

CACHE_DIR = Path("runs/data/speech")
_VERSION = 2  # the manifest's content; another version goes into another folder
_MAX_NAMES = 3  # utterances that a note names


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
