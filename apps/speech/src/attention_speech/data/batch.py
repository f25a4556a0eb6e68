"""Load utterances as items (wave, text, name), and pad them to batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from attention_speech.audio import SAMPLE_RATE, Utterance, load_audio

GAP_SECONDS = 0.1  # silence between two files of an utterance


class SpeechBatch(NamedTuple):
    """B utterances, padded with 0 to T samples and U tokens."""

    waves: Tensor  # (B, T), at 16 kHz
    lengths: Tensor  # (B,)
    tokens: Tensor  # (B, U)
    token_lengths: Tensor  # (B,)
    texts: list[str]
    names: list[str]

    def first(self, count: int) -> "SpeechBatch":
        """Return the first utterances, padded as before."""
        fields: Any = (field[:count] for field in self)
        return SpeechBatch(*fields)


class Collator:
    """Pad items to a batch, and encode their texts."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, items: Sequence[tuple[Tensor, str, str]]) -> SpeechBatch:
        """Return the batch of items (wave, text, name)."""
        waves, texts, names = zip(*items, strict=True)
        tokens = [torch.tensor(self.tokenizer.encode(text), dtype=torch.int64) for text in texts]
        return SpeechBatch(
            pad_sequence(list(waves), batch_first=True),
            torch.tensor([len(wave) for wave in waves]),
            pad_sequence(tokens, batch_first=True),
            torch.tensor([len(ids) for ids in tokens]),
            list(texts),
            list(names),
        )


class Recordings(Dataset[tuple[Tensor, str, str]]):
    """The waves of utterances at 16 kHz, each time at a speed drawn from `speeds`.

    Speed s turns T samples into T / s samples, and raises the pitch by the factor s. Raises
    UnusableAudio where a file cannot be read to its end.

    Source: https://www.danielpovey.com/files/2015_interspeech_augmentation.pdf
    """

    def __init__(self, utterances: Sequence[Utterance], speeds: Sequence[float] = ()) -> None:
        self.utterances, self.speeds = utterances, tuple(speeds)
        self._cache: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        utterance = self.utterances[index]
        if len(utterance.path) == 1:
            wave = load_audio(utterance.path[0])
        else:  # many utterances share these files, which take a few megabytes: load them once
            for path in utterance.path:
                if path not in self._cache:
                    self._cache[path] = load_audio(path)
            wave = join_waves([self._cache[path] for path in utterance.path])
        if self.speeds:
            wave = change_speed(wave, self.speeds[int(torch.randint(len(self.speeds), ()))])
        return wave, utterance.text, utterance.name


def join_waves(waves: Sequence[Tensor]) -> Tensor:
    """Concatenate waves (T,) with silence between them."""
    silence = waves[0].new_zeros(round(GAP_SECONDS * SAMPLE_RATE))
    pieces = [piece for wave in waves for piece in (silence, wave)]
    return torch.cat(pieces[1:])


def change_speed(wave: Tensor, factor: float) -> Tensor:
    """Play a wave (..., T) `factor` times as fast."""
    if factor == 1:
        return wave
    from torchaudio.functional import speed

    return speed(wave, SAMPLE_RATE, factor)[0]
