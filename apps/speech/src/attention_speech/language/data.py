"""The transcripts of a speech data set, without the speech, and texts beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from experiment_kit.data.datamodule import SplitDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, Dataset

from attention_speech.data import SpeechData
from attention_speech.language.corpus import TextLines, find_corpus
from attention_speech.tokenizer import BLANK, BOS, EOS


class Transcripts(SplitDataModule):
    """The transcripts of a speech data set; all of its test splits are scored as one.

    `corpus` is a text file whose lines are trained on too: `librispeech-lm-norm.txt` is that of
    openslr.org, in DATA_DIR, with 40,418,260 lines. A batch is ids (B, U + 2) from begin to end, 0
    where padded.
    """

    UNSAVED_ARGUMENTS = ("speech",)

    def __init__(
        self,
        speech: SpeechData,
        batch_size: int = 64,
        corpus: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            speech.dataset_name,
            data_dir=None,
            protocol=speech.protocol,
            val_fraction=0.1,
            batch_size=batch_size,
            **kwargs,
        )
        self.speech, self.corpus = speech, corpus

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

    def list_data_files(self) -> Sequence[Path]:
        """List the files of the transcripts, and the corpus."""
        corpus = [find_corpus(self.corpus, self.speech.data_dir)] if self.corpus else []
        return [*self.speech.list_data_files(), *corpus]

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text, from begin to end."""
        return torch.tensor([BOS, *self.speech.tokenizer.encode(text), EOS])

    def load_splits(self, split: str) -> dict[str, Dataset[Tensor]]:
        """Encode the transcripts of a split; those of training come before the corpus."""
        names = self.speech.test_splits if split == "test" else (split,)
        texts = [one.text for name in names for one in self.speech.utterances[name]]
        found: Any = [self.encode(text) for text in texts]
        if split == "train" and self.corpus:
            path = find_corpus(self.corpus, self.speech.data_dir)
            found = ConcatDataset([found, TextLines(path, self.encode)])
        return {split: found}
