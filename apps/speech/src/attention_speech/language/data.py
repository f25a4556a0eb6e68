"""Transcripts without their speech."""

from collections.abc import Callable, Sequence

import torch
from experiment_kit.data.parts import PartsData
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_speech.data import SpeechData
from attention_speech.vocabulary import BLANK, BOS, EOS


class Transcripts(PartsData):
    """What is said in a data set of speech, without the speech; the first of its tests alone.

    A batch is ids (B, U + 2) from begin to end, 0 where padded.
    """

    def __init__(
        self, speech: SpeechData, batch_size: int = 64, num_workers: int = 0, seed: int = 0
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["speech"])
        self.speech, self.batch_size = speech, batch_size
        self.num_workers, self.seed = num_workers, seed
        self.parts: dict[str, list[Tensor]] = {}

    @property
    def protocol(self) -> str:
        """That of the speech."""
        return self.speech.protocol

    @property
    def vocab_size(self) -> int:
        """Pieces and special tokens."""
        return self.speech.vocab_size

    @property
    def tokenizer(self) -> str:
        """The file of the vocabulary."""
        return self.speech.tokenizer

    @property
    def collate(self) -> Callable[[Sequence[Tensor]], Tensor]:
        """Texts become one batch."""
        return _padded

    def setup(self, stage: str) -> None:
        """Encode the texts, once."""
        encode, found = self.speech.vocabulary.encode, self.speech.utterances
        for part, name in {"train": "train", "val": "val", "test": self.speech.tests[0]}.items():
            self.parts[part] = [torch.tensor([BOS, *encode(u.text), EOS]) for u in found[name]]


def _padded(texts: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(texts), batch_first=True, padding_value=BLANK)
