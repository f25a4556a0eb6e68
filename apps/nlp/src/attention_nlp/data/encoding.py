"""Texts as padded batches of token ids."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast


class Example(NamedTuple):
    """A text, perhaps a second one, and what is to be said of it."""

    text: str
    pair: str | None
    target: float | int


class Encoded(Dataset[Any]):
    """Examples as token ids: (ids, types, target)."""

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


class Collate:
    """Pad the texts of a batch, on the right, to the longest of them.

    >>> [part.tolist() for part in Collate(0)([([5, 6], [0, 1], 1), ([7], [0], 0)])]
    [[[5, 6], [7, 0]], [[True, True], [True, False]], [[0, 1], [0, 0]], [1, 0]]
    """

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Make ids, mask, types and the target of examples."""
        ids, types, targets = zip(*items, strict=True)
        lengths = torch.tensor([len(text) for text in ids])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        return [padded(ids, self.pad), mask, padded(types, 0), torch.tensor(targets)]


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of different lengths as one tensor (B, N), filled up with `value`.

    >>> padded([[1, 2], [3]], 0).tolist()
    [[1, 2], [3, 0]]
    """
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
