"""Tokenize a corpus into one stream and cut it into spans, of which some tokens are scored.

Shapes: T tokens in a stream, S spans of at most N tokens, B spans in a batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp.tasks.base import IGNORED

GROUP_SIZE = 1000  # rows that `datasets` maps at once by default


class TextRow(NamedTuple):
    """A row of a corpus and its number of words, which counts a line end."""

    text: str
    num_words: int


class TokenStream(NamedTuple):
    """Token ids (T,) and the number of words (T,) that each token stands for.

    The words of a row are spread over its tokens, so that a part of a stream has its share.
    """

    ids: Tensor
    num_words: Tensor

    def prepend(self, token_id: int) -> "TokenStream":
        """Return the stream after one more token of no word, the context of the first token."""
        return TokenStream(pad(self.ids, (1, 0), value=token_id), pad(self.num_words, (1, 0)))


def tokenize_rows(
    rows: Sequence[TextRow], tokenizer: PreTrainedTokenizerFast, block: int | None = None
) -> TokenStream:
    """Tokenize all rows and concatenate them.

    With a `block`, each 1,000 rows keep only the tokens that fill whole blocks: the grouping of
    https://github.com/huggingface/transformers/blob/v4.32.0/examples/pytorch/language-modeling/run_clm_no_trainer.py,
    which drops the rest, and with it 1,000 rows that are shorter than a block.

    >>> from attention_nlp.tokenizer import train_tokenizer
    >>> rows, tokenizer = [TextRow("to be", 2), TextRow("or", 1)], train_tokenizer("gpt2", [], 261)
    >>> tokenize_rows(rows, tokenizer).num_words.tolist()
    [0, 0, 1, 0, 1, 0, 1]
    >>> len(tokenize_rows(rows, tokenizer, block=3).ids)
    6
    """
    ids, words = [torch.zeros(0, dtype=torch.int32)], [torch.zeros(0, dtype=torch.int32)]
    for start in range(0, len(rows), GROUP_SIZE):
        group = rows[start : start + GROUP_SIZE]
        encoded = tokenizer(
            [row.text for row in group],
            add_special_tokens=False,
            return_attention_mask=False,
            verbose=False,  # rows may be longer than the model's positions here
        )["input_ids"]
        lengths = np.array([len(row) for row in encoded])
        kept = lengths.sum() if block is None else lengths.sum() // block * block
        flat = [token for row in encoded for token in row]
        ids.append(torch.tensor(flat[:kept], dtype=torch.int32))
        spread = _spread_words(lengths, np.array([row.num_words for row in group]))
        words.append(torch.from_numpy(spread[:kept].astype(np.int32)))
    return TokenStream(torch.cat(ids), torch.cat(words))


def _spread_words(lengths: np.ndarray, num_words: np.ndarray) -> np.ndarray:
    """Spread the w words of a row over its n tokens: floor(j w / n) words to the first j."""
    n, w = np.repeat(lengths, lengths), np.repeat(num_words, lengths)
    j = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    return (j + 1) * w // n - j * w // n


def list_blocks(length: int, block: int) -> Tensor:
    """List adjacent spans (S, 3): the start, the first scored token, the end.

    The first token of a block has no context and is not scored.

    >>> list_blocks(7, 3).tolist()
    [[0, 1, 3], [3, 4, 6], [6, 7, 7]]
    """
    start = torch.arange(0, length, block)
    return torch.stack([start, start + 1, (start + block).clamp(max=length)], 1)


def list_windows(length: int, block: int, stride: int) -> Tensor:
    """List overlapping spans (S, 3) that score each token but the first exactly once.

    A scored token has at least `block - stride` tokens before it, or all that there are.
    Source: https://huggingface.co/docs/transformers/perplexity

    >>> list_windows(7, 4, 2).tolist()
    [[0, 1, 4], [2, 4, 6], [4, 6, 7]]
    """
    start = torch.arange(0, max(length - block, 0) + stride, stride)
    end = (start + block).clamp(max=length)
    return torch.stack([start, torch.cat([torch.ones_like(end[:1]), end[:-1]]), end], 1)


class TextSpans(Dataset[Any]):
    """Spans of a stream: ids (N,), target (N,) with -100 where not scored, scored words."""

    def __init__(self, stream: TokenStream, spans: Tensor) -> None:
        self.stream, self.spans = stream, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        start, scored, end = self.spans[index].tolist()
        ids = self.stream.ids[start:end].long()
        target = ids.clone()
        target[: scored - start] = IGNORED
        return ids, target, int(self.stream.num_words[scored:end].sum())


class SpanCollator:
    """Pad spans on the right: ids, mask, types and target (B, N), scored words (B,).

    >>> first, second = torch.tensor([5, 6]), torch.tensor([7])
    >>> items = [(first, torch.tensor([-100, 6]), 1), (second, second, 0)]
    >>> [part.tolist() for part in SpanCollator(0)(items)][3:]
    [[[-100, 6], [7, -100]], [1, 0]]
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, items: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
        """Make a batch."""
        ids, targets, num_words = zip(*items, strict=True)
        lengths = torch.tensor([len(text) for text in ids])
        valid_mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        texts = pad_sequence(list(ids), batch_first=True, padding_value=self.pad_token_id)
        target = pad_sequence(list(targets), batch_first=True, padding_value=IGNORED)
        return [texts, valid_mask, torch.zeros_like(texts), target, torch.tensor(num_words)]
