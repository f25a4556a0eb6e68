"""Encode texts and pairs of texts as padded batches of token ids."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

SEPARATOR = "[SEP]"  # between the fields of a text; SuperGLUE takes the tokenizer's own


class Example(NamedTuple):
    """A text, a second one or None, and a label or number."""

    text: str
    pair: str | None
    target: float | int


class EncodedTexts(Dataset[Any]):
    """Examples as (ids, types, target); a pair is one sequence."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
    ) -> None:
        pairs = [example.pair for example in examples]
        encoded = tokenizer(
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            truncation=True,
            max_length=max_length,
            return_token_type_ids=True,
            return_attention_mask=False,
        )
        self.ids, self.types = encoded["input_ids"], encoded["token_type_ids"]
        self.targets = [example.target for example in examples]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[list[int], list[int], float | int]:
        return self.ids[index], self.types[index], self.targets[index]


class EncodedPairs(Dataset[Any]):
    """Pairs of texts as (ids, ids, target): two sequences, each different text encoded once."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
    ) -> None:
        texts = list(dict.fromkeys(chain.from_iterable(example[:2] for example in examples)))
        self.ids = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
        index = {text: i for i, text in enumerate(texts)}
        self.pairs = [(index[text], index[pair], target) for text, pair, target in examples]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[list[int], list[int], float | int]:
        first, second, target = self.pairs[index]
        return self.ids[first], self.ids[second], target


class TextCollator:
    """Pad the texts of a batch on the right: ids, mask and types (B, N), target (B,)."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make a batch."""
        ids, types, targets = zip(*items, strict=True)
        lengths = torch.tensor([len(text) for text in ids])
        valid_mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        texts = pad_rows(ids, self.pad_token_id)
        return [texts, valid_mask, pad_rows(types, 0), torch.tensor(targets)]


class PairCollator(TextCollator):
    """Pad pairs: ids, mask and types (2B, N), a pair in consecutive rows, target (B,)."""

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make a batch."""
        texts = [(text, [0] * len(text), 0) for item in items for text in item[:2]]
        *inputs, _ = super().__call__(texts)
        return [*inputs, torch.tensor([target for *_, target in items])]


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Pad rows of different lengths to one tensor (B, N)."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
