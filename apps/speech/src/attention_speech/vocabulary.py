"""Pieces of words: a SentencePiece model of the transcripts, kept by what it was made of."""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import sentencepiece
from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically

BLANK, BOS, EOS, UNKNOWN = range(4)  # the blank of CTC is padding, too
PIECES = 4  # the first of the others
CACHE = Path("runs/tokenizers")
Kind = Literal["unigram", "char"]


class Vocabulary:
    """The pieces of a file that `train` made: text to ids, and back.

    Ids are 0 blank and padding, 1 begin, 2 end, 3 unknown, then the pieces. Encoding adds neither
    begin nor end; decoding leaves out the four. A word that holds an unknown character keeps its
    other pieces.

    Raises UserError for a file that is no such vocabulary.

    Source: https://github.com/google/sentencepiece

    >>> import tempfile
    >>> vocabulary = Vocabulary(train(["ONE TWO"], 11, "char", Path(tempfile.mkdtemp())))
    >>> ids = vocabulary.encode("TWO ONE")
    >>> vocabulary.size, len(ids), vocabulary.decode([BOS, *ids, EOS])
    (10, 8, 'TWO ONE')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def _model(self) -> Any:
        if not self.path.is_file():
            raise UserError(f"there is no vocabulary {self.path}: train or fetch it again")
        try:
            model: Any = sentencepiece.SentencePieceProcessor()
            model.Load(str(self.path))
        except RuntimeError as error:
            raise UserError(f"{self.path} is no SentencePiece model") from error
        special = [model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id()]
        if special != [BLANK, BOS, EOS, UNKNOWN]:
            raise UserError(
                f"{self.path} has padding, begin, end and unknown at {special}, and not at "
                f"{[BLANK, BOS, EOS, UNKNOWN]}"
            )
        return model

    @property
    def size(self) -> int:
        """How many ids there are, the four special ones among them."""
        return self._model.GetPieceSize()

    @property
    def pieces(self) -> list[str]:
        """All pieces in the order of their ids."""
        return [self._model.IdToPiece(i) for i in range(self.size)]

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return self._model.EncodeAsIds(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids."""
        return self._model.DecodeIds([int(i) for i in ids if i >= PIECES])


def train(texts: Sequence[str], size: int, kind: Kind = "unigram", folder: Path = CACHE) -> Path:
    """Make a vocabulary of texts, or find the one that was made of them before.

    Kind `unigram` has exactly `size` ids, kind `char` as many as there are characters, at most
    `size`. The file is named by a hash of the texts and the options.

    Raises ValueError for a kind that is not known, and UserError where the texts are empty or do
    not have as many pieces, or `size` has no room for their characters.

    Source: https://arxiv.org/abs/1804.10959

    >>> import tempfile
    >>> train(["ONE"], 5000, folder=Path(tempfile.mkdtemp()))
    Traceback (most recent call last):
    experiment_kit.errors.UserError: data.vocabulary 5000 is too large: the texts have ...
    """
    if kind not in ("unigram", "char"):
        raise ValueError(f"data.kind must be unigram or char, got {kind!r}")
    if not any(text.strip() for text in texts):
        raise UserError("the training transcripts are empty: there is nothing to make a vocabulary")
    least = PIECES + 1 + len(set("".join("".join(texts).split())))  # and the mark of a word's begin
    if size < least:
        raise UserError(f"data.vocabulary {size} is too small: the characters alone take {least}")
    text = json.dumps([kind, size, list(texts)])
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.model"
    if not path.is_file():
        write_atomically(path, _trained(texts, size, kind))
    return path


def _trained(texts: Sequence[str], size: int, kind: Kind) -> bytes:
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts),
            model_writer=written,
            vocab_size=size,
            model_type=kind,
            character_coverage=1.0,
            hard_vocab_limit=kind == "unigram",
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,  # longer texts would be left out without a word
            num_threads=1,  # with several, the result depends on their number
            pad_id=BLANK,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNKNOWN,
            pad_piece="<blank>",
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_sentence(str(error), size)) from error
    return written.getvalue()


def _sentence(error: str, size: int) -> str:
    if found := re.search(r"value <= (\d+)", error):
        return (
            f"data.vocabulary {size} is too large: the texts have pieces for at most {found[1]} ids"
        )
    return f"data.vocabulary {size} cannot be made of the texts: {' '.join(error.split())}"
