"""Write synthetic speech to files: digit strings of many speakers, in LibriSpeech's layout."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from experiment_kit.data.cache_files import make_cache
from experiment_kit.errors import UserError
from numpy.typing import NDArray

from attention_speech.audio import SAMPLE_RATE, load_audio
from attention_speech.synthesis.formants import DIGITS, draw_speaker, synthesize_words

Engine = Literal["auto", "espeak", "formants"]
_VERSION = 1  # the synthesis; another version goes into another folder
_MIN_DIGITS, _MAX_DIGITS = 2, 4  # in a string
_CHAPTER_SIZE = 40  # strings of a speaker in one folder
_SPEAKERS = {"train": range(12), "dev": range(12, 15), "test": range(15, 18)}
# male and female variants of espeak-ng's voices, one for each speaker
_VARIANTS = tuple(f"m{i}" for i in range(1, 8)) + tuple(f"f{i}" for i in range(1, 5))
_ACCENTS = ("en-us", "en-gb")


class _Prompt(NamedTuple):
    name: str  # <speaker>-<chapter>-<number>
    words: tuple[str, ...]
    speaker: int
    seed: int


def resolve_engine(engine: Engine) -> str:
    """Replace auto by espeak where it is installed, else by formants.

    Raises UserError for an espeak that is not installed.
    """
    installed = shutil.which("espeak-ng")
    if engine == "espeak" and not installed:
        raise UserError("data.engine espeak needs espeak-ng, which is not installed")
    return ("espeak" if installed else "formants") if engine == "auto" else engine


def make_corpus(root: Path, engine: str, num_strings: int) -> Path:
    """Return the folder synthetic-<hash> in `root`; write it, whole or not at all, if it is absent.

    The folder holds <part>/<speaker>/<chapter>/*.flac and *.trans.txt, with `num_strings` strings
    in part train, and a tenth as many in dev and in test. Raises UserError where espeak-ng fails.
    """
    key = repr((_VERSION, engine, num_strings, _SPEAKERS, DIGITS))
    folder = root.absolute() / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    sizes = {"train": num_strings, "dev": num_strings // 10, "test": num_strings // 10}

    def write_parts(new: Path) -> None:
        for stream, (part, size) in enumerate(sizes.items()):
            _write_part(new / part, list(_draw_prompts(part, size, stream)), engine)

    return make_cache(folder, write_parts)


def _draw_prompts(part: str, count: int, stream: int) -> Iterator[_Prompt]:
    """Draw strings for speakers in turn; every call draws the same."""
    rng = np.random.default_rng((0, stream))
    speakers = _SPEAKERS[part]
    for index in range(count):
        speaker = speakers[index % len(speakers)]
        turn = index // len(speakers)
        words = rng.choice(DIGITS, rng.integers(_MIN_DIGITS, _MAX_DIGITS + 1)).tolist()
        name = f"{speaker + 1}-{turn // _CHAPTER_SIZE + 1}-{turn % _CHAPTER_SIZE:04d}"
        yield _Prompt(name, tuple(words), speaker, int(rng.integers(1 << 31)))


def _write_part(folder: Path, prompts: list[_Prompt], engine: str) -> None:
    import soundfile

    folder.mkdir(parents=True)
    texts: dict[Path, list[str]] = {}
    for prompt in prompts:
        reader, chapter, _ = prompt.name.split("-")
        place = folder / reader / chapter
        place.mkdir(parents=True, exist_ok=True)
        if engine == "espeak":
            wave = _run_espeak(prompt)
        else:
            wave = synthesize_words(prompt.words, draw_speaker(prompt.speaker), prompt.seed)
        soundfile.write(place / f"{prompt.name}.flac", wave, SAMPLE_RATE, subtype="PCM_16")
        transcript = place / f"{reader}-{chapter}.trans.txt"
        texts.setdefault(transcript, []).append(f"{prompt.name} {' '.join(prompt.words)}\n")
    for transcript, lines in texts.items():
        transcript.write_text("".join(lines))


def _run_espeak(prompt: _Prompt) -> NDArray[np.float32]:
    """Return the wave of espeak-ng at 16 kHz; voice, pitch and rate depend on the speaker."""
    rng = np.random.default_rng((prompt.speaker, 2))
    variant = _VARIANTS[prompt.speaker % len(_VARIANTS)]
    voice = f"{_ACCENTS[prompt.speaker // len(_VARIANTS) % len(_ACCENTS)]}+{variant}"
    rate, pitch = str(rng.integers(130, 190)), str(rng.integers(30, 70))
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/a.wav"
        text = " ".join(prompt.words).lower()  # espeak-ng spells some words in capitals
        command = ["espeak-ng", "-v", voice, "-s", rate, "-p", pitch, "-w", path, text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not Path(path).is_file():
            raise UserError(f"`{' '.join(command[:-1])}` failed: {done.stderr.strip()[:200]}")
        return load_audio(path).numpy()
