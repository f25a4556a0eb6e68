"""Sequences with some words masked, replaced or asked for as they are (BERT's 80/10/10)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attention_nlp.tasks.masked import IGNORED

Item = tuple[np.ndarray, np.ndarray]  # ids (N,), targets (N,)


def masked(ids: np.ndarray, mask: int, words: int, share: float, draw: np.random.Generator) -> Item:
    """Ask for a share of the words: of those, 80 % are masked, 10 % another word, 10 % kept.

    The counts are exact, `round(share N)` words of which the first `round(0.8 n)` are masked and
    those up to `round(0.9 n)` are drawn from all `words`: 26, 3 and 3 of 128 words at 25 %. Any
    word may be asked for and any may be drawn, the separator too, as in the released code.

    Shapes: ids (N,) -> ids (N,), targets (N,), -100 where nothing is asked.

    Source: https://github.com/JonasGeiping/cramming

    >>> ids, target = masked(np.full(128, 7), 4, 5, 0.25, np.random.default_rng(0))
    >>> (ids == 4).sum() >= 26, (target == 7).sum(), (target == -100).sum()
    (np.True_, np.int64(32), np.int64(96))
    """
    count = round(share * len(ids))
    places = draw.permutation(len(ids))[:count]
    hidden, replaced = round(0.8 * count), round(0.9 * count)
    changed, target = ids.astype(np.int64), np.full(len(ids), IGNORED)
    target[places] = changed[places]
    changed[places[:hidden]] = mask
    changed[places[hidden:replaced]] = draw.integers(words, size=replaced - hidden)
    return changed, target


class Masked(Dataset[Item]):
    """A data set of sequences, masked anew each time, or where `seed` is given always alike.

    What is drawn anew comes from torch's generator, which the training loader seeds for each
    batch.

    >>> data = Masked([np.arange(8)], mask=4, words=9, share=0.25, seed=0)
    >>> [bool((a == b).all()) for a, b in zip(data[0], data[0])]
    [True, True]
    """

    def __init__(
        self,
        sequences: Sequence[np.ndarray],
        mask: int,
        words: int,
        share: float,
        seed: int | None = None,
    ) -> None:
        self.sequences, self.mask, self.words = sequences, mask, words
        self.share, self.seed = share, seed

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Item:
        key = [int(torch.randint(2**62, ()))] if self.seed is None else [self.seed, index]
        draw = np.random.default_rng(key)
        return masked(self.sequences[index], self.mask, self.words, self.share, draw)


class Chapters(Dataset[Any]):
    """A long data set in epochs of `length` items each, taken in turn, round and round.

    `sampler` is that of the loader and says which epoch it is.

    >>> data = Chapters(range(5), 2)
    >>> data.sampler.epoch = 2
    >>> [data[i] for i in range(len(data))]
    [4, 0]
    """

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset, self.length = dataset, length
        self.sampler: Any = _First()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.dataset[(self.sampler.epoch * self.length + index) % len(self.dataset)]


class _First:
    epoch = 0


def batch(items: Sequence[Item]) -> list[Tensor]:
    """Make ids, mask, types and targets (B, N) of sequences of one length: nothing is padded.

    >>> [part.tolist() for part in batch([(np.array([5, 4]), np.array([-100, 6]))])]
    [[[5, 4]], [[True, True]], [[0, 0]], [[-100, 6]]]
    """
    ids, targets = (torch.from_numpy(np.stack(part)) for part in zip(*items, strict=True))
    return [ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids), targets]
