"""The transcripts of a speech data set, without the speech."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from experiment_kit.data.datamodule import SplitDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_speech.data import SpeechData
from attention_speech.tokenizer import BLANK, BOS, EOS


class Transcripts(SplitDataModule):
    """The transcripts of a speech data set; of its test splits, the first.

    A batch is ids (B, U + 2) from begin to end, 0 where padded.
    """

    UNSAVED_ARGUMENTS = ("speech",)

    def __init__(self, speech: SpeechData, batch_size: int = 64, **kwargs: Any) -> None:
        super().__init__(
            speech.dataset_name,
            data_dir=None,
            protocol=speech.protocol,
            val_fraction=0.1,
            batch_size=batch_size,
            **kwargs,
        )
        self.speech = speech

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special ones."""
        return self.speech.vocab_size

    @property
    def tokenizer_file(self) -> str:
        """The file of the tokenizer."""
        return self.speech.tokenizer_file

    @property
    def collate(self) -> Callable[[list[Tensor]], Tensor]:
        """The function that pads texts to a batch."""
        return partial(pad_sequence, batch_first=True, padding_value=BLANK)

    def load_splits(self, split: str) -> dict[str, list[Tensor]]:
        """Encode the transcripts of a split."""
        encode = self.speech.tokenizer.encode
        name = self.speech.test_splits[0] if split == "test" else split
        texts = (one.text for one in self.speech.utterances[name])
        return {split: [torch.tensor([BOS, *encode(text), EOS]) for text in texts]}
