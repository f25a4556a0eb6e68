"""Error rates of words and characters: insertions, deletions and substitutions of an alignment."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric


class Edits(NamedTuple):
    """How many edits make a hypothesis of a reference, and how long the reference is."""

    substitutions: int
    insertions: int
    deletions: int
    length: int


def align(reference: Sequence[Any], hypothesis: Sequence[Any]) -> Edits:
    r"""The fewest edits that make a hypothesis of a reference, counted by kind.

    .. math:: c_{ij} = \min(c_{i-1,j} + 1, \; c_{i,j-1} + 1, \; c_{i-1,j-1} + [r_i \neq h_j])

    Insertions in a row are one running minimum of :math:`c_{ij} - j`. Of several alignments of the
    same cost it is the one that substitutes rather than deletes, and deletes rather than inserts.

    Source: https://en.wikipedia.org/wiki/Word_error_rate

    >>> align("one two three".split(), "one too three four".split())
    Edits(substitutions=1, insertions=1, deletions=0, length=3)
    """
    known = {part: i for i, part in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    r, h = (np.array([known[p] for p in part], dtype=np.int64) for part in (reference, hypothesis))
    steps = np.arange(len(h) + 1)
    costs = np.empty((len(r) + 1, len(h) + 1), dtype=np.int64)
    costs[0] = steps
    for i, part in enumerate(r):
        row = costs[i] + 1
        row[1:] = np.minimum(row[1:], costs[i, :-1] + (h != part))
        costs[i + 1] = np.minimum.accumulate(row - steps) + steps
    return _walk(costs, r, h)


def _walk(costs: Any, r: Any, h: Any) -> Edits:
    i, j = len(r), len(h)
    substitutions = insertions = deletions = 0
    while i and j:
        wrong = int(r[i - 1] != h[j - 1])
        if costs[i, j] == costs[i - 1, j - 1] + wrong:
            i, j, substitutions = i - 1, j - 1, substitutions + wrong
        elif costs[i, j] == costs[i - 1, j] + 1:
            i, deletions = i - 1, deletions + 1
        else:
            j, insertions = j - 1, insertions + 1
    return Edits(substitutions, insertions + j, deletions + i, len(r))


def by_words(reference: str, hypothesis: str) -> Edits:
    """The edits of words.

    >>> by_words("ONE TWO", "TWO")
    Edits(substitutions=0, insertions=0, deletions=1, length=2)
    """
    return align(reference.split(), hypothesis.split())


def by_characters(reference: str, hypothesis: str) -> Edits:
    """The edits of characters, one space between words among them.

    >>> by_characters("ONE TWO", "ONE  TWO.")
    Edits(substitutions=0, insertions=1, deletions=0, length=7)
    """
    return align(" ".join(reference.split()), " ".join(hypothesis.split()))


class ErrorRate(Metric):
    r"""Edits of all utterances over the length of all references.

    .. math:: \frac{S + I + D}{N}

    It may exceed one; without any reference it is the number of insertions.

    >>> rate = ErrorRate()
    >>> rate.update([by_words("ONE TWO", "ONE TOO"), by_words("TEN", "TEN")])
    >>> round(rate.compute()["rate"].item(), 3)
    0.333
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)  # every device scores the whole set
        for name in Edits._fields:
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, edits: Iterable[Edits]) -> None:
        """Add the edits of utterances."""
        for name, counts in zip(Edits._fields, zip(*edits, strict=True), strict=False):
            setattr(self, name, getattr(self, name) + sum(counts))

    def compute(self) -> dict[str, Tensor]:
        """The rate, and the edits that it is made of."""
        edits = {name: getattr(self, name) for name in Edits._fields[:3]}
        length: Any = self.length
        return {"rate": sum(edits.values()) / length.clamp(min=1), **edits}
