"""Pairs of texts that are encoded each by itself."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp.data.encoding import Collate, Example


class EncodedPairs(Dataset[Any]):
    """Pairs of texts as token ids (ids, ids, target); each text is encoded once."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
    ) -> None:
        codes = list(dict.fromkeys(chain.from_iterable(example[:2] for example in examples)))
        self.ids = tokenizer(codes, truncation=True, max_length=max_length)["input_ids"]
        place = {code: i for i, code in enumerate(codes)}
        self.pairs = [(place[text], place[pair], label) for text, pair, label in examples]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[list[int], list[int], float | int]:
        first, second, target = self.pairs[index]
        return self.ids[first], self.ids[second], target


class Paired(Collate):
    """Pad pairs to ids, mask and types (2B, N), the texts of a pair in consecutive rows.

    >>> [part.tolist() for part in Paired(0)([([5, 6], [7], 1)])]
    [[[5, 6], [7, 0]], [[True, True], [True, False]], [[0, 0], [0, 0]], [1]]
    """

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make ids, mask, types and the target (B,) of pairs."""
        single = [(text, [0] * len(text), 0) for item in items for text in item[:2]]
        *texts, _ = super().__call__(single)
        return [*texts, torch.tensor([target for *_, target in items])]
