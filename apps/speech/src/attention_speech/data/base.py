"""What the data sets of this app have in common: utterances in parts, batched by seconds."""

import math
import sys
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal

from experiment_kit.data.buckets import bucketed_loader, sorted_loader
from experiment_kit.data.parts import PartsData
from experiment_kit.errors import UserError
from torch.utils.data import DataLoader

from attention_speech.audio import Utterance
from attention_speech.audio.manifest import told
from attention_speech.data.batches import Collate, Recordings
from attention_speech.vocabulary import UNKNOWN, Vocabulary, train

TOPS = ("", "speech/")  # folders of DATA_DIR
_FRAMES = 25  # a second, after front ends that leave one of four frames of 10 ms


class SpeechData(PartsData):
    """Waves at 16 kHz with what is said in them; a batch is a `batches.Batch`.

    A batch holds at most `max_batch` utterances, and at most `batch_seconds` of them padded;
    those of a batch are of like length. Utterances of more than `max_seconds` are not trained
    on, but tested. In training an utterance is played at one of the factors of `speed`, drawn
    anew each time. The vocabulary, `vocabulary` pieces at most of a `kind`, is trained on the
    training transcripts alone. What is left out or changed is counted on standard error, once.

    Protocol `validation` chooses the epoch on the development part and scores the test parts
    once; protocol `test` chooses it on the first test part itself: an upper bound.

    `vocab_size` and `tokenizer`, the file of the vocabulary, are linked to the model's arguments
    of the same names; `tests` names the parts of `test_dataloader`, one loader or a list.

    Raises ValueError for an argument out of its range.
    """

    known: ClassVar[tuple[str, ...]] = ()
    tests: tuple[str, ...] = ("test",)

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        batch_seconds: float = 120.0,
        max_batch: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        speed: tuple[float, ...] = (),
        vocabulary: int = 5000,
        kind: Literal["unigram", "char"] = "unigram",
        max_seconds: float = 30.0,
    ) -> None:
        super().__init__()
        _one_of("name", name, self.known)
        _one_of("protocol", protocol, ("validation", "test"))
        _one_of("kind", kind, ("unigram", "char"))
        least = {"max_batch": (max_batch, 1), "vocabulary": (vocabulary, 5)}
        least |= {"num_workers": (num_workers, 0)}
        _at_least(least)
        if not all(0.5 <= factor <= 2 for factor in speed):
            raise ValueError(f"data.speed must be factors from 0.5 to 2, got {speed}")
        slowest = max_seconds / min(speed, default=1)
        if not 0 < slowest <= batch_seconds:
            raise ValueError(
                f"data.batch_seconds must be at least {slowest:g}, an utterance of max_seconds at "
                f"the slowest speed, and that above 0; got {batch_seconds:g}"
            )
        self.save_hyperparameters()
        self.problem, self.data_dir, self.protocol, self.seed = name, data_dir, protocol, seed
        self.batch_seconds, self.batch_size, self.max_seconds = (
            batch_seconds,
            max_batch,
            max_seconds,
        )
        self.num_workers, self.speed = num_workers, tuple(speed)
        self.pieces, self.kind = vocabulary, kind
        self.parts: dict[str, Recordings] = {}

    def split(self) -> dict[str, list[Utterance]]:
        """The parts train, val and `tests`; raises UserError where the files are not right."""
        raise NotImplementedError

    @cached_property
    def utterances(self) -> dict[str, list[Utterance]]:
        """The parts as they are used: train without what is too long, val as the protocol says."""
        parts = self.split()
        long = [one for one in parts["train"] if one.seconds > self.max_seconds]
        if long:
            names = [one.name for one in long]
            self.say(f"{told(f'more than {self.max_seconds:g} s', names)}: not trained on")
            parts["train"] = [one for one in parts["train"] if one.seconds <= self.max_seconds]
        if self.protocol == "test":
            parts["val"] = parts[self.tests[0]]
        if empty := [part for part in parts if not parts[part]]:
            raise UserError(f"{self.problem} has no utterance to use in {', '.join(empty)}")
        return parts

    @cached_property
    def tokenizer(self) -> str:
        """The file of the vocabulary, trained now where it was not before."""
        texts = [one.text for one in self.utterances["train"]]
        return str(train(texts, self.pieces, self.kind))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The pieces of the training transcripts."""
        return Vocabulary(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        """Pieces and special tokens."""
        return self.vocabulary.size

    @property
    def collate(self) -> Collate:
        """Waves and tokens become one batch."""
        return Collate(self.vocabulary)

    def setup(self, stage: str) -> None:
        """Make the parts, once."""
        if self.parts:
            return
        for part, utterances in self.utterances.items():
            speed = self.speed if part == "train" else ()
            self.parts[part] = Recordings(utterances, speed)
            self._encoded(part, utterances)

    def _encoded(self, part: str, utterances: list[Utterance]) -> None:
        """Say what the vocabulary lacks, and what connectionist temporal classification cannot."""
        unknown, crowded = [], []
        for one in utterances:
            ids = self.vocabulary.encode(one.text)
            unknown += [one.name] * (UNKNOWN in ids)
            # equal neighbours need a blank between them
            needed = len(ids) + sum(a == b for a, b in pairwise(ids))
            crowded += [one.name] * (needed > _FRAMES * one.seconds)
        crowd = f"more tokens than CTC aligns at {_FRAMES} a second"
        for kind, names in {"a token outside of the vocabulary": unknown, crowd: crowded}.items():
            if names:
                self.say(f"{part}: {told(kind, names)}")

    def say(self, note: str) -> None:
        """A sentence on standard error."""
        print(f"note: {self.problem}: {note}", file=sys.stderr)

    def shuffled(self, part: str, **options: Any) -> DataLoader[Any]:
        """Batches of a part that seed and epoch alone decide; see `bucketed_loader`."""
        recordings = self.parts[part]
        slowest = min(recordings.speed, default=1)
        # a wave is cut to whole samples: none is longer than this
        lengths = [math.ceil(100 * one.seconds / slowest) / 100 for one in recordings.utterances]
        budget, most = self.batch_seconds, self.batch_size
        return bucketed_loader(
            recordings, lengths, budget, self.seed, self.trainer, most, **self._options(), **options
        )

    def in_order(self, part: str) -> DataLoader[Any]:
        """Batches of a part from its shortest utterance to its longest."""
        lengths = [one.seconds for one in self.parts[part].utterances]
        budget, most = self.batch_seconds, self.batch_size
        return sorted_loader(self.parts[part], lengths, budget, most, **self._options())

    def test_dataloader(self) -> Any:
        """What is scored once."""
        loaders = [self.in_order(part) for part in self.tests]
        return loaders if len(loaders) > 1 else loaders[0]

    def predict_dataloader(self) -> Any:
        """The test parts again, each from its shortest utterance to its longest."""
        return self.test_dataloader()


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"data.{name} must be {' or '.join(allowed)}, got {value!r}")


def _at_least(numbers: dict[str, tuple[int, int]]) -> None:
    for name, (value, low) in numbers.items():
        if value < low:
            raise ValueError(f"data.{name} must be at least {low}, got {value}")
