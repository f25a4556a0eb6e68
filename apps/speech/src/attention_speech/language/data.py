"""The transcripts of a speech data set, without the speech, and the lines of a text file."""

import codecs
import gzip
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment_kit.data.datamodule import SplitDataModule, find_dataset
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.run_files import hold_lock, warn_once, write_atomically
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, Dataset

from attention_speech.data import SpeechData
from attention_speech.tokenizer import BLANK, BOS, EOS

PUBLISHED_CORPUS = "librispeech-lm-norm.txt"
_BLOCK = 2**26  # bytes of which the ends of lines are searched at once


class Transcripts(SplitDataModule):
    """The transcripts of a speech data set; all of its test splits are scored as one.

    A batch is ids (B, U + 2) from begin to end, 0 where padded.

    Args:
        speech: Data set of the recognizer, with its tokenizer.
        corpus: Text file whose lines are trained on too: `librispeech-lm-norm.txt` is that of
            openslr.org, in DATA_DIR, with 40,418,260 lines; null is none.
    """

    def __init__(
        self, speech: SpeechData, batch_size: int = 64, corpus: str | None = None, **kwargs: Any
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


class TextLines(Dataset[Tensor]):
    """The lines of a text file as ids; memory holds where each begins, 8 bytes a line and 4 more.

    Lines without a character, and those of `max_characters` or more bytes, are left out. Raises
    UserError for a file whose beginning is no text in UTF-8.
    """

    def __init__(
        self, path: Path, encode: Callable[[str], Tensor], max_characters: int = 1000
    ) -> None:
        self.path, self.encode = path, encode
        content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        prefix = f"{path} is no text in UTF-8, so unpack or convert it: "
        with convert_user_errors(UnicodeError, prefix=prefix):
            if "\0" in codecs.utf_8_decode(content[:_BLOCK].tobytes())[0]:
                raise UnicodeError("it has characters NUL")
        blocks = range(0, len(content), _BLOCK)
        ends = [np.flatnonzero(content[at : at + _BLOCK] == ord("\n")) + at for at in blocks]
        edges = np.concatenate([[-1], *ends, [len(content)]])
        lengths = np.diff(edges) - 1
        kept = (lengths > 0) & (lengths < max_characters)
        if count := (lengths >= max_characters).sum():
            warn_once(f"{path}: lines of {max_characters} bytes or more, not trained on: {count}")
        self.begins = edges[:-1][kept] + 1
        self.lengths = lengths[kept].astype(np.int32)
        if not len(self.begins):
            raise UserError(f"{path} has no line of 1 to {max_characters - 1} characters")

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> Tensor:
        """Return the ids of a line; bytes that are no UTF-8 become unknown characters."""
        with self.path.open("rb") as file:
            file.seek(int(self.begins[index]))
            line = file.read(int(self.lengths[index]))
        return self.encode(line.decode("utf-8", "replace").strip())


def find_corpus(name: str, data_dir: str | None = None) -> Path:
    """Return a text file, or the published corpus in DATA_DIR, which is unpacked once."""
    if name != PUBLISHED_CORPUS:
        if not Path(name).is_file():
            raise UserError(f"data.corpus {name} is no file")
        return Path(name)
    hint = "`allpass data librispeech_lm` fetches it"
    names = (name, f"{name}.gz")
    path = find_dataset(data_dir, names, Path.is_file, hint, ("", "speech/", "LibriSpeech/"))
    return path if path.suffix == ".txt" else unpack_text(path)


def unpack_text(archive: Path) -> Path:
    """Unpack a .gz file beside it, once; raises UserError for a damaged one."""
    path = archive.with_suffix("")
    with hold_lock(path.with_name(f"{path.name}.lock")):  # parallel runs share their data
        if path.is_file():
            return path
        kinds, text = (OSError, EOFError, zlib.error), f"{archive} cannot be unpacked: "
        with convert_user_errors(*kinds, prefix=text), gzip.open(archive) as packed:
            write_atomically(path, lambda file: shutil.copyfileobj(packed, file, _BLOCK))
    return path
