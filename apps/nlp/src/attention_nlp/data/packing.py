"""Documents as token ids on disk, packed into sequences of one length, and read from there.

No more than a few documents are in memory at a time.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from experiment_kit.errors import UserError
from transformers import PreTrainedTokenizerFast

PARTS = ("train", "val", "test")
_AT_ONCE = 256  # documents


class Plan(NamedTuple):
    """How documents become sequences.

    Each of `length` tokens, documents one after the other with a separator behind each. A `share`
    of the documents is held out, for val and test by turns. A document is left out where it has
    more than `trash` tokens a character: the tokenizer cannot make words of it. At most `limit`
    sequences are made to train on.
    """

    length: int = 128
    share: float = 0.01
    trash: float | None = 0.25
    limit: int | None = None


def key(*parts: object) -> str:
    """A name for what is made of those parts.

    >>> key("a", 1) == key("a", 1) != key("a", 2)
    True
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def pack(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: Plan, folder: Path
) -> None:
    """Write the files `train`, `val` and `test` into a new folder; all of them or none.

    Where another process was faster, its folder stays.

    Raises UserError where a part has not one whole sequence.
    """
    made = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        _write(documents, tokenizer, plan, made)
        if not folder.is_dir():
            made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: Plan, folder: Path
) -> None:
    period, stream = max(2, round(1 / plan.share)), enumerate(_clean(documents, tokenizer, plan))
    train, val, test = (_Writer(folder / name, plan.length, dtype(tokenizer)) for name in PARTS)
    with train, val, test:
        for number, ids in stream:
            held = number % period == period - 1
            writer = (val, test)[number // period % 2] if held else train
            writer.add(ids)
            if plan.limit is not None and train.count >= plan.limit:
                break
    for name, writer in zip(PARTS, (train, val, test), strict=True):
        if not writer.count:
            raise UserError(
                f"the texts make no whole sequence of {plan.length} tokens for {name}: there are "
                "too few of them, or data.share or data.trash leaves too few"
            )


def _clean(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: Plan
) -> Iterator[list[int]]:
    texts = (text for text in documents if text.strip())
    while some := list(islice(texts, _AT_ONCE)):
        encoded = tokenizer(
            some,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # there is no limit: the documents are cut into sequences
        )
        for text, ids in zip(some, encoded["input_ids"], strict=True):
            if ids and (plan.trash is None or len(ids) < plan.trash * len(text)):
                yield [*ids, tokenizer.sep_token_id]


class _Writer:
    def __init__(self, path: Path, length: int, kind: np.dtype) -> None:
        self.file, self.length, self.kind = path.open("wb"), length, kind
        self.rest: list[int] = []
        self.count = 0

    def add(self, ids: Sequence[int]) -> None:
        self.rest += ids
        whole = len(self.rest) // self.length
        self.file.write(np.array(self.rest[: whole * self.length], self.kind).tobytes())
        del self.rest[: whole * self.length]
        self.count += whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def dtype(tokenizer: PreTrainedTokenizerFast) -> np.dtype:
    """The smallest type that holds the ids of a tokenizer, the same on every machine."""
    return np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")


class Packed(Sequence[np.ndarray]):
    """The sequences of a file, read where they are asked for.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "train"
    >>> _ = path.write_bytes(np.arange(6, dtype="<u2").tobytes())
    >>> rows = Packed(path, 3, np.dtype("<u2"))
    >>> len(rows), rows[1].tolist()
    (2, [3, 4, 5])
    """

    def __init__(self, path: Path, length: int, kind: np.dtype) -> None:
        self.path, self.length, self.kind = path, length, kind
        self.rows = np.memmap(path, kind, "r").reshape(-1, length)

    def __reduce__(self) -> tuple[type, tuple[Path, int, np.dtype]]:
        return Packed, (self.path, self.length, self.kind)  # not the content, to a worker

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]
        return np.asarray(self.rows[index])
