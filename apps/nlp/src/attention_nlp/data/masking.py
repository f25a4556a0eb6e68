"""Mask words of packed sequences: BERT's 80 % masked, 10 % replaced, 10 % kept."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attention_nlp.tasks.base import IGNORED

Item = tuple[np.ndarray, np.ndarray]  # ids (N,), target (N,)


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

    >>> data = EpochSlices(range(5), 2)
    >>> data.sampler.epoch = 2
    >>> [data[i] for i in range(len(data))]
    [4, 0]
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
