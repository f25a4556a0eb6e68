"""The Free Spoken Digit Dataset: single digits, joined into strings of one speaker.

https://github.com/Jakobovski/free-spoken-digit-dataset
"""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from experiment_kit.data.local import locate
from experiment_kit.errors import UserError

from attention_speech.audio import Transcript, Utterance, matched
from attention_speech.data.base import TOPS, SpeechData
from attention_speech.data.batches import GAP
from attention_speech.synthesis import DIGITS

_SEED = 0  # of the strings, the same for every run: the test set must not change
_SHORTEST, _LONGEST = 2, 5  # digits of a string
_FOLDERS = ("fsdd", "fsdd_subset", "free-spoken-digit-dataset", ".")
_HINT = "`python -m attention_speech.download fsdd` fetches it"


class Digits(SpeechData):
    """Strings of two to five digits that one speaker said one by one, 0.1 s of silence between.

    The strings are drawn once, the same for every run; `train_count`, `val_count` and
    `test_count` are their numbers. `val_speaker` and `test_speaker` are heard in their parts
    alone. Recordings have 8 kHz and are resampled.

    Source: https://github.com/Jakobovski/free-spoken-digit-dataset

    >>> Digits("fsdd").tests
    ('test',)
    """

    known = ("fsdd",)

    def __init__(
        self,
        name: str = "fsdd",
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        batch_seconds: float = 120.0,
        max_batch: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        speed: tuple[float, ...] = (),
        vocabulary: int = 5000,
        kind: Literal["unigram", "char"] = "char",
        max_seconds: float = 30.0,
        val_speaker: str = "theo",
        test_speaker: str = "yweweler",
        train_count: int = 1200,
        val_count: int = 120,
        test_count: int = 200,
    ) -> None:
        super().__init__(
            name, data_dir, protocol, batch_seconds, max_batch, num_workers, seed, speed,
            vocabulary, kind, max_seconds,
        )  # fmt: skip
        self.counts = {"train": train_count, "val": val_count, "test": test_count}
        if min(self.counts.values()) < 1:
            raise ValueError(f"data.train_count, val_count and test_count must be at least 1, got "
                             f"{', '.join(map(str, self.counts.values()))}")  # fmt: skip
        if val_speaker == test_speaker:
            raise ValueError(f"data.val_speaker and test_speaker must differ, got {val_speaker!r}")
        self.held_out = {"val": val_speaker, "test": test_speaker}

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the recordings; raises UserError where there is none."""
        return _locate(None)

    def split(self) -> dict[str, list[Utterance]]:
        """Strings of the speakers of each part."""
        recordings = _recordings(_locate(self.data_dir), self)
        speakers = sorted({one.speaker for one in recordings})
        for part, speaker in self.held_out.items():
            if speaker not in speakers:
                raise UserError(f"data.{part}_speaker must be one of {', '.join(speakers)}, "
                                f"got {speaker!r}")  # fmt: skip
        of = {part: [speaker] for part, speaker in self.held_out.items()}
        of["train"] = [one for one in speakers if one not in self.held_out.values()]
        if not of["train"]:
            raise UserError(f"{self.problem} has no speaker to train on beside {speakers}")
        self.say("; ".join(f"{part}: {', '.join(who)}" for part, who in of.items()))
        return {
            part: strings(
                [one for one in recordings if one.speaker in of[part]], count, f"{part}-", number
            )
            for number, (part, count) in enumerate(self.counts.items())
        }


def _locate(data_dir: str | None) -> Path:
    return locate(data_dir, _FOLDERS, lambda place: (place / "recordings").is_dir(), _HINT, TOPS)


def _recordings(root: Path, data: SpeechData) -> list[Utterance]:
    """One digit each; a file whose name is not {digit}_{speaker}_{index} has no transcript."""
    audio = {path.stem: path for path in (root / "recordings").glob("*.wav")}
    transcripts = {
        name: Transcript(DIGITS[int(parsed[1])], parsed[2])
        for name in audio
        if (parsed := re.fullmatch(r"(\d)_(\w+)_\d+", name))
    }
    found = matched(data.problem, audio, transcripts)
    for note in found.notes:
        data.say(note)
    return found.utterances


def strings(
    recordings: Sequence[Utterance], count: int, prefix: str = "", stream: int = 0
) -> list[Utterance]:
    """Strings of two to five words of one speaker each: speaker, length, words and takes drawn.

    >>> takes = [Utterance(word, (word,), 0.5, word, "bob") for word in DIGITS]
    >>> one = strings(takes, 1)[0]
    >>> one.text.split() == list(one.path), one.seconds - 0.6 * len(one.path)
    (True, -0.1...)
    """
    draw = np.random.default_rng((_SEED, stream))
    by_speaker = groupby(sorted(recordings, key=_speaker), key=_speaker)
    takes = {who: {word: list(group) for word, group in groupby(sorted(mine, key=_text), key=_text)}
             for who, mine in by_speaker}  # fmt: skip
    made = []
    for number in range(count):
        who = str(draw.choice(list(takes)))
        words = draw.choice(list(takes[who]), draw.integers(_SHORTEST, _LONGEST + 1))
        said = [takes[who][word][draw.integers(len(takes[who][word]))] for word in words]
        seconds = sum(one.seconds for one in said) + GAP * (len(said) - 1)
        path = tuple(file for one in said for file in one.path)
        made.append(Utterance(f"{prefix}{who}-{number:04d}", path, seconds, " ".join(words), who))
    return made


def _speaker(one: Utterance) -> str:
    return one.speaker


def _text(one: Utterance) -> str:
    return one.text
