"""Utterances: audio and transcripts brought together, every file looked into, once."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically
from filelock import FileLock
from rich.console import Console
from rich.progress import track

from attention_speech.audio.files import RATE, Header, UnusableAudio, header

CACHE = Path("runs/data/speech")
_VERSION = 2  # of what is in a manifest; another one is another folder
_NAMED = 3  # of the utterances that have the same trouble


class Transcript(NamedTuple):
    """What is said, in upper-case words, and who says it."""

    text: str
    speaker: str


class Utterance(NamedTuple):
    """What is said in the files of `path`, one after the other with silences between them."""

    name: str
    path: tuple[str, ...]
    seconds: float
    text: str
    speaker: str


class Manifest(NamedTuple):
    """The utterances that can be used, in the order of their names, and what to say of others."""

    utterances: list[Utterance]
    notes: list[str]


def matched(
    name: str,
    audio: Mapping[str, Path],
    transcripts: Mapping[str, Transcript],
) -> Manifest:
    """The utterances of audio files and transcripts, both by the names of utterances.

    Left out, counted and named in the notes: audio without transcript and the reverse, a
    transcript without words, a file that `header` refuses. Another rate or more channels are
    noted too. Files are read to their end, by as many threads as torch has, and not again while
    they keep their size and date: the manifest lies in `runs/data/speech`. Raises UserError where
    none is left.
    """
    both = {key: audio[key] for key in sorted(audio.keys() & transcripts.keys())}
    path = CACHE / f"{name}-{_key(audio, transcripts)}" / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path.parent}.lock"):
        if not path.exists():
            found = _checked(name, both, transcripts)
            found["left out"] |= _apart(audio.keys(), transcripts.keys())
            write_atomically(path, json.dumps(found) + "\n")
    found = json.loads(path.read_text())
    notes = [
        f"{told(kind, names)}{end}"
        for group, end in (("left out", ": left out"), ("converted", ""))
        for kind, names in found[group].items()
        if names
    ]
    if not found["utterances"]:
        raise UserError("; ".join([f"{name} has no utterance that can be used", *notes]))
    rows = found["utterances"]
    return Manifest([Utterance(n, (p,), s, t, who) for n, p, s, t, who in rows], notes)


def _key(audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]) -> str:
    """Sixteen hex digits over names, places, sizes and dates of the files, and all texts."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for key, path in sorted(audio.items()):
        stat = path.stat() if path.exists() else None  # a link may lead nowhere
        seen = (key, str(path.absolute()), stat and (stat.st_size, stat.st_mtime_ns))
        digest.update(f"{seen}\n".encode())
    for pair in sorted(transcripts.items()):
        digest.update(f"{pair}\n".encode())
    return digest.hexdigest()[:16]


def _apart(audio: Iterable[str], transcripts: Iterable[str]) -> dict[str, list[str]]:
    with_audio, with_text = set(audio), set(transcripts)
    return {
        "audio but no transcript": sorted(with_audio - with_text),
        "a transcript but no audio": sorted(with_text - with_audio),
    }


def _checked(
    name: str, audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]
) -> dict[str, Any]:
    """Rows of utterances, and the names that have a trouble, by its kind."""
    rows: list[tuple[str, str, float, str, str]] = []
    left: dict[str, list[str]] = {}
    converted: dict[str, list[str]] = {}
    console = Console(stderr=True)
    silent = not console.is_terminal
    # libsndfile lets go of the interpreter
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        looked = pool.map(_looked, audio.values())
        bar = track(looked, f"{name}: audio", len(audio), console=console, disable=silent)
        for key, found in zip(audio, bar, strict=True):
            text, speaker = transcripts[key]
            if isinstance(found, Header) and text.strip():
                rows.append((key, str(audio[key].absolute()), found.seconds, text, speaker))
                for kind in _conversions(found):
                    converted.setdefault(kind, []).append(key)
            else:
                kind = "an empty transcript" if isinstance(found, Header) else found
                left.setdefault(kind, []).append(key)
    return {"utterances": rows, "left out": left, "converted": converted}


def _looked(path: Path) -> Header | str:
    try:
        return header(path)
    except UnusableAudio as error:
        return error.reason


def _conversions(found: Header) -> list[str]:
    kinds = [f"{found.rate} Hz, resampled to {RATE} Hz"] if found.rate != RATE else []
    return kinds + [f"{found.channels} channels, averaged"] * (found.channels > 1)


def told(kind: str, names: Sequence[str]) -> str:
    """How many utterances are of a kind, and the first of them.

    >>> told("no samples", ["a", "b", "c", "d"])
    '4 utterances with no samples (a, b, c, ...)'
    """
    first = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
    return f"{len(names)} utterance{'s' * (len(names) != 1)} with {kind} ({first})"
