"""Write synthetic speech to files: digit strings of many speakers, in LibriSpeech's layout."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.data.folders import make_cache

from attention_speech.audio import SAMPLE_RATE
from attention_speech.synthesis.formants import DIGITS, draw_speaker, synthesize_words

_VERSION = 1  # the synthesis; another version goes into another folder
_MIN_DIGITS, _MAX_DIGITS = 2, 4  # in a string
_CHAPTER_SIZE = 40  # strings of a speaker in one folder
_SPEAKERS = {"train": range(12), "dev": range(12, 15), "test": range(15, 18)}


class _Prompt(NamedTuple):
    name: str  # <speaker>-<chapter>-<number>
    words: tuple[str, ...]
    speaker: int
    seed: int


def make_corpus(root: Path, num_strings: int) -> Path:
    """Return the folder synthetic-<hash> in `root`; write it, whole or not at all, if it is absent.

    The folder holds <part>/<speaker>/<chapter>/*.flac and *.trans.txt, with `num_strings` strings
    in part train, and a tenth as many in dev and in test.
    """
    key = repr((_VERSION, "formants", num_strings, _SPEAKERS, DIGITS))
    folder = root.absolute() / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    sizes = {"train": num_strings, "dev": num_strings // 10, "test": num_strings // 10}

    def write_parts(new: Path) -> None:
        for stream, (part, size) in enumerate(sizes.items()):
            _write_part(new / part, _draw_prompts(part, size, stream))

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


def _write_part(folder: Path, prompts: Iterator[_Prompt]) -> None:
    import soundfile

    folder.mkdir(parents=True)
    texts: dict[Path, list[str]] = {}
    for prompt in prompts:
        reader, chapter, _ = prompt.name.split("-")
        place = folder / reader / chapter
        place.mkdir(parents=True, exist_ok=True)
        wave = synthesize_words(prompt.words, draw_speaker(prompt.speaker), prompt.seed)
        soundfile.write(place / f"{prompt.name}.flac", wave, SAMPLE_RATE, subtype="PCM_16")
        transcript = place / f"{reader}-{chapter}.trans.txt"
        texts.setdefault(transcript, []).append(f"{prompt.name} {' '.join(prompt.words)}\n")
    for transcript, lines in texts.items():
        transcript.write_text("".join(lines))
