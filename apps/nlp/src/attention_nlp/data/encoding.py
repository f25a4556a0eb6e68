"""Encode texts and pairs of texts as padded batches of token ids."""

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from torch import Tensor
from transformers import PreTrainedTokenizerFast

SEPARATOR = "[SEP]"  # between the fields of a text; SuperGLUE takes the tokenizer's own


class Example(NamedTuple):
    """A text, a second one or None, and a label or number."""

    text: str
    pair: str | None
    target: float | int


def encode_texts(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[tuple[list[int], list[int], float | int]]:
    """Encode examples as (ids, types, target); a pair is one sequence. Say where many are cut."""
    pairs = [example.pair for example in examples]
    encoded = tokenizer(
        [example.text for example in examples],
        None if pairs[0] is None else pairs,
        truncation=True,
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    if empty := [i for i, ids in enumerate(encoded["input_ids"], 1) if not ids]:
        raise UserError(f"text {empty[0]} of {len(examples)} has no token: leave it out")
    if 20 * (cut := sum(bool(x.overflowing) for x in encoded.encodings or ())) > len(examples):
        text = f"{cut} of {len(examples)} texts are cut after data.max_length={max_length} tokens"
        print(f"note: {text}", file=sys.stderr)
    targets = [example.target for example in examples]
    return list(zip(encoded["input_ids"], encoded["token_type_ids"], targets, strict=True))


def encode_pairs(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[tuple[list[int], list[int], float | int]]:
    """Encode pairs of texts as (ids, ids, target): two sequences, each different text once."""
    texts = list(dict.fromkeys(chain.from_iterable(example[:2] for example in examples)))
    encoded = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    ids: dict[str | None, list[int]] = dict(zip(texts, encoded, strict=True))
    return [(ids[text], ids[pair], target) for text, pair, target in examples]


def collate_texts(pad_token_id: int, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
    """Pad the texts of a batch on the right: ids, mask and types (B, N), target (B,)."""
    ids, types, targets = zip(*items, strict=True)
    lengths = torch.tensor([len(text) for text in ids])
    valid_mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    return [pad_rows(ids, pad_token_id), valid_mask, pad_rows(types, 0), torch.tensor(targets)]


def collate_pairs(pad_token_id: int, items: Sequence[tuple[Any, ...]]) -> list[Tensor]:
    """Pad pairs: ids, mask and types (2B, N), a pair in consecutive rows, target (B,)."""
    texts = [(text, [0] * len(text), 0) for item in items for text in item[:2]]
    *inputs, _ = collate_texts(pad_token_id, texts)
    return [*inputs, torch.tensor([target for *_, target in items])]


def pad_rows(rows: Sequence[Sequence[int] | Tensor], value: int) -> Tensor:
    """Pad rows of different lengths to one tensor (B, N)."""
    tensors = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
