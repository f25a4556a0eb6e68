"""A SentencePiece tokenizer, trained on transcripts and cached by a hash of them."""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import sentencepiece
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError, convert_user_errors

BLANK, BOS, EOS, UNK = range(4)  # the blank of CTC is also the padding
NUM_SPECIAL = 4
CACHE_DIR = Path("runs/tokenizers")
PUBLISHED = "published"  # the value of an option that names a file of the repository below
REPOSITORY = "asr-transformer-transformerlm-librispeech"
TokenType = Literal["unigram", "char"]


class Tokenizer:
    """Convert text to ids and back, with a file of `train_tokenizer` or of speechbrain.

    Ids are 0 blank and padding, 1 begin, 2 end, 3 unknown, then the pieces; in speechbrain's, 0 is
    the unknown id too. `encode` adds neither begin nor end; `decode` skips the special ids. Of a
    word with an unknown character, all other pieces are kept.

    Source: https://github.com/google/sentencepiece
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def _model(self) -> Any:
        if not self.path.is_file():
            raise UserError(f"there is no tokenizer {self.path}: train it again, or name its file")
        model: Any = sentencepiece.SentencePieceProcessor()
        with convert_user_errors(RuntimeError, prefix=f"{self.path} is no SentencePiece model: "):
            model.Load(str(self.path))
        special = [model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id()]
        if special not in ([BLANK, BOS, EOS, UNK], [-1, BOS, EOS, BLANK]):
            raise UserError(
                f"{self.path} has padding, begin, end and unknown at ids {special}; expected "
                f"{[BLANK, BOS, EOS, UNK]}, or {[-1, BOS, EOS, BLANK]} as in speechbrain's"
            )
        return model

    @property
    def is_speechbrains(self) -> bool:
        """True where the unknown id is the blank, as in speechbrain's files."""
        return self._model.unk_id() == BLANK

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the four special ones."""
        return self._model.GetPieceSize()

    @property
    def pieces(self) -> list[str]:
        """All pieces in the order of their ids."""
        return [self._model.IdToPiece(i) for i in range(self.vocab_size)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; an unknown character that has the blank's id is left out."""
        return [i for i in self._model.EncodeAsIds(text) if i != BLANK]

    def has_unknown(self, text: str) -> bool:
        """Return True where a character of a text is in no piece."""
        return self._model.unk_id() in self._model.EncodeAsIds(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""
        special = {BLANK, BOS, EOS, self._model.unk_id()}
        return self._model.DecodeIds([int(i) for i in ids if int(i) not in special])


def find_published(name: str, data_dir: str | None = None) -> Path:
    """Find a file of speechbrain's LibriSpeech recognizer; raises UserError, with the remedy."""
    hint = (
        f"`hf download speechbrain/{REPOSITORY} lm.ckpt tokenizer.ckpt --local-dir "
        f"$DATA_DIR/{REPOSITORY}` fetches it"
    )
    names = (f"{REPOSITORY}/{name}",)
    return find_dataset(data_dir, names, Path.is_file, hint, ("", "speech/"))


def train_tokenizer(
    texts: Sequence[str], size: int, token_type: TokenType = "unigram", folder: Path = CACHE_DIR
) -> Path:
    """Train a tokenizer, or find the file of the same texts and options; return its path.

    Type `unigram` has exactly `size` ids; type `char` has one for each character, at most `size`.

    Source: https://arxiv.org/abs/1804.10959
    """
    if not any(text.strip() for text in texts):
        raise UserError("the training transcripts are empty: a tokenizer needs some text")
    # one id for each character, and one for the mark at the beginning of a word
    least = NUM_SPECIAL + 1 + len(set("".join("".join(texts).split())))
    if size < least:
        raise UserError(f"data.num_tokens {size} is too small: the characters alone take {least}")
    key = json.dumps([token_type, size, list(texts)])

    def write_model(new: Path) -> None:
        (new / "tokenizer.model").write_bytes(_train_sentencepiece(texts, size, token_type))

    place = make_cache(folder / hashlib.sha256(key.encode()).hexdigest()[:16], write_model)
    return place / "tokenizer.model"


def _train_sentencepiece(texts: Sequence[str], size: int, token_type: TokenType) -> bytes:
    buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts),
            model_writer=buffer,
            vocab_size=size,
            model_type=token_type,
            character_coverage=1.0,
            hard_vocab_limit=token_type == "unigram",
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,  # longer texts would be skipped silently
            num_threads=1,  # the result depends on the number of threads
            pad_id=BLANK,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            pad_piece="<blank>",
            minloglevel=2,
        )
    except RuntimeError as error:
        found = re.search(r"value <= (\d+)", str(error))
        reason = f"they have pieces for {found[1]} ids at most" if found else str(error)
        raise UserError(f"data.num_tokens {size} does not suit the texts: {reason}") from error
    return buffer.getvalue()
