"""Pack documents into sequences of one length on disk, read these, and mask their words.

Only a few documents are in memory at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp.tasks.base import IGNORED

SPLITS = ("train", "val", "test")
_DOCUMENTS_AT_ONCE = 256
_SEQUENCES_AT_ONCE = 2**16
Item = tuple[np.ndarray, np.ndarray]  # ids (N,), target (N,)


class PackingPlan(NamedTuple):
    """The settings of packing.

    A sequence has `length` tokens; documents follow each other with a separator behind each. A
    fraction `held_out` of the documents goes to val and test in turn. Documents with more than
    `max_tokens_per_char` are left out: the tokenizer finds no words in them. At most
    `max_sequences` are made to train on.
    """

    length: int = 128
    held_out: float = 0.01
    max_tokens_per_char: float | None = 0.25
    max_sequences: int | None = None


def pack_documents(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: PackingPlan, folder: Path
) -> Path:
    """Return a folder with the files `train`, `val` and `test`, all written now or none."""
    return make_cache(folder, lambda new: _write_splits(documents, tokenizer, plan, new))


def _write_splits(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: PackingPlan, folder: Path
) -> None:
    period = max(2, round(1 / plan.held_out))
    with ExitStack() as stack:
        files = (stack.enter_context((folder / name).open("wb")) for name in SPLITS)
        writers = [_SequenceWriter(file, plan.length, ids_dtype(tokenizer)) for file in files]
        train, val, test = writers
        for number, ids in enumerate(_tokenize_documents(documents, tokenizer, plan)):
            is_held_out = number % period == period - 1
            writer = (val, test)[number // period % 2] if is_held_out else train
            writer.write_ids(ids)
            if plan.max_sequences is not None and train.count >= plan.max_sequences:
                break
        for name, writer in zip(SPLITS, writers, strict=True):
            if not writer.count:
                raise UserError(
                    f"the texts fill no sequence of {plan.length} tokens for {name}: there are too "
                    "few documents (a .txt file has a new one after each empty line), or "
                    "data.val_fraction or data.max_tokens_per_char leaves too few"
                )


def _tokenize_documents(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, plan: PackingPlan
) -> Iterator[list[int]]:
    texts = (text for text in documents if text.strip())
    limit = plan.max_tokens_per_char
    while group := list(islice(texts, _DOCUMENTS_AT_ONCE)):
        encoded = tokenizer(
            group,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # documents of any length are cut into sequences
        )
        for text, ids in zip(group, encoded["input_ids"], strict=True):
            if ids and (limit is None or len(ids) < limit * len(text)):
                yield [*ids, tokenizer.sep_token_id]


class _SequenceWriter:
    """Write token ids as whole sequences; the last tokens, which fill none, are dropped."""

    def __init__(self, file: IO[bytes], length: int, dtype: np.dtype) -> None:
        self.file, self.length, self.dtype = file, length, dtype
        self.rest: list[int] = []
        self.count = 0

    def write_ids(self, ids: Sequence[int]) -> None:
        self.rest += ids
        whole = len(self.rest) // self.length
        self.file.write(np.array(self.rest[: whole * self.length], self.dtype).tobytes())
        del self.rest[: whole * self.length]
        self.count += whole


def ids_dtype(tokenizer: PreTrainedTokenizerFast) -> np.dtype:
    """Return the smallest type for the ids of a tokenizer, with the same bytes everywhere."""
    return np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")


class PackedSequences(Sequence[np.ndarray]):
    """The sequences of a file, read when they are indexed, in an order of their places."""

    def __init__(
        self, path: Path, length: int, dtype: np.dtype, order: np.ndarray | None = None
    ) -> None:
        self.path, self.length, self.dtype, self.order = path, length, dtype, order
        self.rows = np.memmap(path, dtype, "r").reshape(-1, length)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        # workers open the file
        return PackedSequences, (self.path, self.length, self.dtype, self.order)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]
        return np.asarray(self.rows[index if self.order is None else self.order[index]])

    def sort_by_count(self, token_id: int) -> "PackedSequences":
        """Return the sequences by how often they have a token, those with most of it first.

        Source: https://github.com/JonasGeiping/cramming (sentence-length-curriculum)
        """
        blocks = range(0, len(self), _SEQUENCES_AT_ONCE)
        counts = [(self.rows[i : i + _SEQUENCES_AT_ONCE] == token_id).sum(1) for i in blocks]
        order = np.argsort(-np.concatenate(counts), kind="stable")
        return PackedSequences(self.path, self.length, self.dtype, order)


def mask_words(
    ids: np.ndarray,
    mask_token_id: int,
    vocab_size: int,
    mask_fraction: float,
    generator: np.random.Generator,
) -> Item:
    """Choose a fraction of the words to predict; 80 % of them are masked, 10 % replaced.

    The counts are exact: of n = `round(mask_fraction N)` words the first `round(0.8 n)` are masked
    and the next, up to `round(0.9 n)`, are drawn from the vocabulary: 26, 3 and 3 of 128 words at
    25 %. Any word may be chosen or drawn, the separator too, as in the released code.

    Shapes: ids (N,) -> ids (N,), target (N,), -100 for words that are not predicted.

    Source: https://github.com/JonasGeiping/cramming

    >>> ids, target = mask_words(np.full(128, 7), 4, 5, 0.25, np.random.default_rng(0))
    >>> (ids == 4).sum() >= 26, (target == 7).sum(), (target == -100).sum()
    (np.True_, np.int64(32), np.int64(96))
    """
    count = round(mask_fraction * len(ids))
    chosen = generator.permutation(len(ids))[:count]
    num_masked, num_changed = round(0.8 * count), round(0.9 * count)
    changed, target = ids.astype(np.int64), np.full(len(ids), IGNORED)
    target[chosen] = changed[chosen]
    changed[chosen[:num_masked]] = mask_token_id
    random_words = generator.integers(vocab_size, size=num_changed - num_masked)
    changed[chosen[num_masked:num_changed]] = random_words
    return changed, target


class MaskedSequences(Dataset[Item]):
    """Sequences with masked words: other words each time, or always the same with a `seed`.

    New draws are seeded from torch's generator, which the training loader seeds for each batch.
    """

    def __init__(
        self,
        sequences: Sequence[np.ndarray],
        mask_token_id: int,
        vocab_size: int,
        mask_fraction: float,
        seed: int | None = None,
    ) -> None:
        self.sequences, self.seed = sequences, seed
        self.settings = mask_token_id, vocab_size, mask_fraction

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Item:
        key = [int(torch.randint(2**62, ()))] if self.seed is None else [self.seed, index]
        return mask_words(self.sequences[index], *self.settings, np.random.default_rng(key))


class EpochSlices(Dataset[Any]):
    """A long data set in epochs of `length` items: each continues where the last one ended.

    `sampler` is that of the loader and has the epoch.
    """

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset, self.length = dataset, length
        self.sampler: Any = SimpleNamespace(epoch=0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.dataset[(self.sampler.epoch * self.length + index) % len(self.dataset)]


def stack_sequences(items: Sequence[Item]) -> list[Tensor]:
    """Stack sequences of one length to ids, mask, types and target (B, N) without padding."""
    ids, targets = (torch.from_numpy(np.stack(part)) for part in zip(*items, strict=True))
    return [ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids), targets]
