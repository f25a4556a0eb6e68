"""A corpus as one stream of tokens, cut into spans of which some tokens are scored.

Shapes: T tokens in a stream, S spans of at most N tokens, B of them in a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp.tasks.causal import IGNORED

ROWS = 1000  # that `datasets` maps at once, unless told otherwise


class Row(NamedTuple):
    """A row of a corpus, and how many words it is, its end among them where it has one."""

    text: str
    words: int


class Stream(NamedTuple):
    """Token ids (T,), and the words (T,) that each stands for, which add up to those of the text.

    The words of a row are spread over its tokens, so that a part of a stream has its share.
    """

    ids: Tensor
    words: Tensor

    def after(self, token: int) -> "Stream":
        """The stream behind one more token, which stands for no word: its first has a context."""
        return Stream(pad(self.ids, (1, 0), value=token), pad(self.words, (1, 0)))


def stream(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerFast, block: int | None = None
) -> Stream:
    """The tokens of all rows, one behind the other.

    With a `block`, of each 1,000 rows only as many tokens as make whole blocks: the grouping of
    https://github.com/huggingface/transformers/blob/v4.32.0/examples/pytorch/language-modeling/run_clm_no_trainer.py,
    which drops the remainder, and with it a batch shorter than a block.

    >>> from attention_nlp.vocabulary import train
    >>> rows = [Row("to be", 2), Row("or", 1)]
    >>> stream(rows, train("gpt2", [], 261)).words.tolist()
    [0, 0, 1, 0, 1, 0, 1]
    >>> len(stream(rows, train("gpt2", [], 261), block=3).ids)
    6
    """
    ids, words = [torch.zeros(0, dtype=torch.int32)], [torch.zeros(0, dtype=torch.int32)]
    for batch in _batches(rows):
        encoded = tokenizer(
            [row.text for row in batch],
            add_special_tokens=False,
            return_attention_mask=False,
            verbose=False,  # rows longer than the model's positions are no mistake here
        )["input_ids"]
        lengths = np.array([len(row) for row in encoded])
        kept = lengths.sum() if block is None else lengths.sum() // block * block
        flat = [token for row in encoded for token in row]
        ids.append(torch.tensor(flat[:kept], dtype=torch.int32))
        shares = _spread(lengths, np.array([row.words for row in batch]))
        words.append(torch.from_numpy(shares[:kept].astype(np.int32)))
    return Stream(torch.cat(ids), torch.cat(words))


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))


def _spread(lengths: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Of w words in n tokens, as many to the first j as floor(j w / n)."""
    n, w = np.repeat(lengths, lengths), np.repeat(words, lengths)
    j = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    return (j + 1) * w // n - j * w // n


def blocks(length: int, block: int) -> Tensor:
    """Spans (S, 3) side by side: where each begins, its first scored token, its end.

    The first token of a block has no context, and is not scored.

    >>> blocks(7, 3).tolist()
    [[0, 1, 3], [3, 4, 6], [6, 7, 7]]
    """
    begin = torch.arange(0, length, block)
    return torch.stack([begin, begin + 1, (begin + block).clamp(max=length)], 1)


def sliding(length: int, block: int, stride: int) -> Tensor:
    """Spans (S, 3) that overlap, so that each token but the first is scored exactly once.

    A scored token has at least `block - stride` tokens before it, or all that there are.
    Source: https://huggingface.co/docs/transformers/perplexity

    >>> sliding(7, 4, 2).tolist()
    [[0, 1, 4], [2, 4, 6], [4, 6, 7]]
    """
    begin = torch.arange(0, max(length - block, 0) + stride, stride)
    end = (begin + block).clamp(max=length)
    return torch.stack([begin, torch.cat([torch.ones_like(end[:1]), end[:-1]]), end], 1)


class Spans(Dataset[Any]):
    """Spans of a stream: ids (N,), target (N,) with -100 where nothing is scored, scored words."""

    def __init__(self, stream: Stream, spans: Tensor) -> None:
        self.stream, self.spans = stream, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        begin, scored, end = self.spans[index].tolist()
        ids = self.stream.ids[begin:end].long()
        target = ids.clone()
        target[: scored - begin] = IGNORED
        return ids, target, int(self.stream.words[scored:end].sum())


class CollateSpans:
    """Ids, mask, types, target, each (B, N), and the scored words (B,); padding is on the right.

    >>> first, second = torch.tensor([5, 6]), torch.tensor([7])
    >>> items = [(first, torch.tensor([-100, 6]), 1), (second, second, 0)]
    >>> [part.tolist() for part in CollateSpans(0)(items)][3:]
    [[[-100, 6], [7, -100]], [1, 0]]
    """

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, items: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
        """Make a batch of spans."""
        ids, targets, words = zip(*items, strict=True)
        lengths = torch.tensor([len(text) for text in ids])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        texts = pad_sequence(list(ids), batch_first=True, padding_value=self.pad)
        target = pad_sequence(list(targets), batch_first=True, padding_value=IGNORED)
        return [texts, mask, torch.zeros_like(texts), target, torch.tensor(words)]
