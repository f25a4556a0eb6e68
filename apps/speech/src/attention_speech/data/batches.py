"""Utterances as items (wave, text, name), and batches of them padded to one length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from attention_speech.audio import RATE, Utterance, load

GAP = 0.1  # seconds of silence between two files of an utterance


class Batch(NamedTuple):
    """B utterances, padded to T samples and U tokens.

    ``waves`` (B, T) at 16 kHz and ``lengths`` (B,), ``tokens`` (B, U) and ``token_lengths`` (B,);
    padding is 0.
    """

    waves: Tensor
    lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor
    texts: list[str]
    names: list[str]

    def first(self, count: int) -> "Batch":
        """The first utterances alone, padded as they are."""
        few: Any = (field[:count] for field in self)
        return Batch(*few)


class Collate:
    """Puts items together; the vocabulary encodes their texts.

    Raises ValueError for no item at all.

    >>> class Letters:
    ...     def encode(self, text):
    ...         return [ord(letter) - 61 for letter in text]
    >>> items = [(torch.ones(3), "A", "first"), (torch.ones(2), "BAB", "second")]
    >>> batch = Collate(Letters())(items)
    >>> batch.tokens.tolist(), batch.lengths.tolist()
    ([[4, 0, 0], [5, 4, 5]], [3, 2])
    """

    def __init__(self, vocabulary: Any) -> None:
        self.vocabulary = vocabulary

    def __call__(self, items: Sequence[tuple[Tensor, str, str]]) -> Batch:
        """Pad waves and tokens."""
        if not items:
            raise ValueError("a batch needs at least one utterance")
        waves, texts, names = zip(*items, strict=True)
        tokens = [torch.tensor(self.vocabulary.encode(text), dtype=torch.int64) for text in texts]
        return Batch(
            pad_sequence(list(waves), batch_first=True),
            torch.tensor([len(wave) for wave in waves]),
            pad_sequence(tokens, batch_first=True),
            torch.tensor([len(ids) for ids in tokens]),
            list(texts),
            list(names),
        )


class Recordings(Dataset[tuple[Tensor, str, str]]):
    """The waves of utterances at 16 kHz; each time at a speed that is drawn among `speed`.

    Speed s makes a wave of T samples one of T / s, and its pitch s times as high. Raises
    UnusableAudio where a file cannot be read to its end.

    Source: https://www.danielpovey.com/files/2015_interspeech_augmentation.pdf
    """

    def __init__(self, utterances: Sequence[Utterance], speed: Sequence[float] = ()) -> None:
        self.utterances, self.speed = utterances, tuple(speed)
        self._takes: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        utterance = self.utterances[index]
        wave = joined([self._wave(path, len(utterance.path) > 1) for path in utterance.path])
        if self.speed:
            wave = sped(wave, self.speed[int(torch.randint(len(self.speed), ()))])
        return wave, utterance.text, utterance.name

    def _wave(self, path: str, shared: bool) -> Tensor:
        if not shared:
            return load(path)
        # a digit is in many strings, and all of them take a few megabytes: resample them once
        if path not in self._takes:
            self._takes[path] = load(path)
        return self._takes[path]


def joined(waves: Sequence[Tensor]) -> Tensor:
    """Waves (T,) one after the other, with silences between them.

    >>> joined([torch.ones(100), torch.ones(50)]).shape
    torch.Size([1750])
    """
    silence = waves[0].new_zeros(round(GAP * RATE))
    parts = [part for wave in waves for part in (silence, wave)]
    return torch.cat(parts[1:])


def sped(wave: Tensor, factor: float) -> Tensor:
    """A wave (..., T) played `factor` times as fast.

    >>> sped(torch.zeros(100), 1.25).shape, sped(torch.zeros(100), 1.0).shape
    (torch.Size([80]), torch.Size([100]))
    """
    if factor == 1:
        return wave
    from torchaudio.functional import speed

    return speed(wave, RATE, factor)[0]
