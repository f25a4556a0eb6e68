"""Speech that needs no file: digit strings, made by espeak-ng or by the formants of this app."""

from pathlib import Path
from typing import Literal

from attention_speech.audio import Utterance
from attention_speech.audio.manifest import CACHE
from attention_speech.data.base import SpeechData
from attention_speech.data.librispeech import read_split
from attention_speech.synthesis.corpus import Engine, chosen, make


class Own(SpeechData):
    """Strings of two to four digits, real FLAC files in LibriSpeech's layout.

    `count` of them to train, a tenth of that to choose the epoch and a tenth to test, each part
    with speakers of its own. `engine` auto is espeak-ng where it is installed, else formants. No
    number on it is worth a mention.

    >>> Own("own").tests
    ('test',)
    """

    known = ("own",)

    def __init__(
        self,
        name: str = "own",
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
        engine: Engine = "auto",
        count: int = 400,
    ) -> None:
        super().__init__(
            name, data_dir, protocol, batch_seconds, max_batch, num_workers, seed, speed,
            vocabulary, kind, max_seconds,
        )  # fmt: skip
        if count < 10:
            raise ValueError(f"data.count must be at least 10, got {count}")
        if engine not in ("auto", "espeak", "formants"):
            raise ValueError(f"data.engine must be auto, espeak or formants, got {engine!r}")
        self.engine, self.count = engine, count

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where the speech will be; it is made where it is not there."""
        return CACHE

    def split(self) -> dict[str, list[Utterance]]:
        """The parts of the corpus, which is made where it is not there."""
        engine = chosen(self.engine)
        self.say(f"spoken by {'espeak-ng' if engine == 'espeak' else 'the built-in formants'}")
        folder = make(CACHE, engine, self.count)
        parts = {}
        for part, split in {"train": "train", "val": "dev", "test": "test"}.items():
            found = read_split(f"{folder.name}-{split}", folder / split)
            parts[part] = found.utterances
            for note in found.notes:
                self.say(f"{split}: {note}")
        return parts
