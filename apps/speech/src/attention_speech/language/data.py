"""The transcripts of a speech data set, without the speech."""

from collections.abc import Callable, Sequence

import torch
from experiment_kit.data.parts import PartsData
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_speech.data import SpeechData
from attention_speech.tokenizer import BLANK, BOS, EOS


class Transcripts(PartsData):
    """The transcripts of a speech data set; of its test splits, the first.

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
        """The protocol of the speech data set."""
        return self.speech.protocol

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special ones."""
        return self.speech.vocab_size

    @property
    def tokenizer_file(self) -> str:
        """The file of the tokenizer."""
        return self.speech.tokenizer_file

    @property
    def collate(self) -> Callable[[Sequence[Tensor]], Tensor]:
        """The function that pads texts to a batch."""
        return _pad_texts

    def setup(self, stage: str) -> None:
        """Encode the transcripts, once."""
        encode, utterances = self.speech.tokenizer.encode, self.speech.utterances
        names = {"train": "train", "val": "val", "test": self.speech.test_splits[0]}
        for split, name in names.items():
            self.parts[split] = [
                torch.tensor([BOS, *encode(one.text), EOS]) for one in utterances[name]
            ]


def _pad_texts(texts: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(texts), batch_first=True, padding_value=BLANK)
