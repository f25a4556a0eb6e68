"""Own speech as files: strings of digits, in LibriSpeech's layout, by many speakers."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from experiment_kit.errors import UserError
from filelock import FileLock
from numpy.typing import NDArray

from attention_speech.synthesis.formants import say, speaker
from attention_speech.synthesis.phones import DIGITS

Engine = Literal["auto", "espeak", "formants"]
_VERSION = 1  # of how it is spoken; another one is another folder
_SHORTEST, _LONGEST = 2, 4  # digits of a string
_CHAPTER = 40  # strings, at most
_RATE = 16000
_SPEAKERS = {"train": range(12), "dev": range(12, 15), "test": range(15, 18)}
# male and female variants of espeak-ng, a new one for each speaker
_VARIANTS = tuple(f"m{i}" for i in range(1, 8)) + tuple(f"f{i}" for i in range(1, 5))
_ACCENTS = ("en-us", "en-gb")


class _Line(NamedTuple):
    name: str  # <speaker>-<chapter>-<number>
    words: tuple[str, ...]
    who: int
    seed: int


def chosen(engine: Engine) -> str:
    """The engine that auto means here; raises UserError for an espeak that is not installed.

    >>> chosen("formants")
    'formants'
    """
    there = shutil.which("espeak-ng")
    if engine == "espeak" and not there:
        raise UserError("data.engine espeak needs espeak-ng, which is not installed")
    return ("espeak" if there else "formants") if engine == "auto" else engine


def make(root: Path, engine: str, count: int) -> Path:
    """The folder own-<hash> in `root`, made where it is not there: whole, or not at all.

    It has <part>/<speaker>/<chapter>/*.flac and *.trans.txt for the parts train, dev and test,
    of `count` strings and a tenth of that twice. Raises UserError where espeak-ng fails.
    """
    key = repr((_VERSION, engine, count, _SPEAKERS, DIGITS))
    folder = root.absolute() / f"own-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=root) as scratch:
            made = Path(scratch) / folder.name
            sizes = {"train": count, "dev": count // 10, "test": count // 10}
            for number, (part, size) in enumerate(sizes.items()):
                _write(made / part, list(_lines(part, size, number)), engine)
            made.rename(folder)
    return folder


def _lines(part: str, count: int, stream: int) -> Iterator[_Line]:
    """Strings that speakers say in turn, the same for every call."""
    draw = np.random.default_rng((0, stream))
    speakers = _SPEAKERS[part]
    for place in range(count):
        who = speakers[place % len(speakers)]
        turn = place // len(speakers)
        words = draw.choice(DIGITS, draw.integers(_SHORTEST, _LONGEST + 1)).tolist()
        name = f"{who + 1}-{turn // _CHAPTER + 1}-{turn % _CHAPTER:04d}"
        yield _Line(name, tuple(words), who, int(draw.integers(1 << 31)))


def _write(folder: Path, lines: list[_Line], engine: str) -> None:
    import soundfile

    folder.mkdir(parents=True)
    texts: dict[Path, list[str]] = {}
    for line in lines:
        reader, chapter, _ = line.name.split("-")
        place = folder / reader / chapter
        place.mkdir(parents=True, exist_ok=True)
        wave = (
            _espeak(line) if engine == "espeak" else say(line.words, speaker(line.who), line.seed)
        )
        soundfile.write(place / f"{line.name}.flac", wave, _RATE, subtype="PCM_16")
        transcript = place / f"{reader}-{chapter}.trans.txt"
        texts.setdefault(transcript, []).append(f"{line.name} {' '.join(line.words)}\n")
    for transcript, rows in texts.items():
        transcript.write_text("".join(rows))


def _espeak(line: _Line) -> NDArray[np.float32]:
    """What espeak-ng says, at 16 kHz; voice, pitch and rate belong to the speaker."""
    from attention_speech.audio import load

    draw = np.random.default_rng((line.who, 2))
    variant = _VARIANTS[line.who % len(_VARIANTS)]
    voice = f"{_ACCENTS[line.who // len(_VARIANTS) % len(_ACCENTS)]}+{variant}"
    rate, pitch = str(draw.integers(130, 190)), str(draw.integers(30, 70))
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/a.wav"
        text = " ".join(line.words).lower()  # it spells some words in capitals
        command = ["espeak-ng", "-v", voice, "-s", rate, "-p", pitch, "-w", path, text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not Path(path).is_file():
            raise UserError(f"`{' '.join(command[:-1])}` failed: {done.stderr.strip()[:200]}")
        return load(path).numpy()
