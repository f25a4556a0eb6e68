"""Word and character error rates: substitutions, insertions and deletions of an alignment."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric


class EditCounts(NamedTuple):
    """The edits that turn a reference into a hypothesis, and the length of the reference."""

    substitutions: int
    insertions: int
    deletions: int
    length: int


def count_edits(reference: Sequence[Any], hypothesis: Sequence[Any]) -> EditCounts:
    r"""Count the fewest edits that turn a reference into a hypothesis, by kind.

    .. math:: c_{ij} = \min(c_{i-1,j} + 1, \; c_{i,j-1} + 1, \; c_{i-1,j-1} + [r_i \neq h_j])

    A row of insertions is one running minimum of :math:`c_{ij} - j`. Among alignments of equal
    cost, a substitution is preferred to a deletion, and a deletion to an insertion. jiwer and
    speechbrain's `edit_distance` count as many edits, but have other preferences.

    Source: https://en.wikipedia.org/wiki/Word_error_rate

    >>> count_edits("one two three".split(), "one too three four".split())
    EditCounts(substitutions=1, insertions=1, deletions=0, length=3)
    """
    ids = {token: i for i, token in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    r, h = (np.array([ids[token] for token in x], dtype=np.int64) for x in (reference, hypothesis))
    columns = np.arange(len(h) + 1)
    costs = np.empty((len(r) + 1, len(h) + 1), dtype=np.int64)
    costs[0] = columns
    for i, token in enumerate(r):
        row = costs[i] + 1
        row[1:] = np.minimum(row[1:], costs[i, :-1] + (h != token))
        costs[i + 1] = np.minimum.accumulate(row - columns) + columns

    i, j = len(r), len(h)
    substitutions = insertions = deletions = 0
    while i and j:  # trace back from the end
        differs = int(r[i - 1] != h[j - 1])
        if costs[i, j] == costs[i - 1, j - 1] + differs:
            i, j, substitutions = i - 1, j - 1, substitutions + differs
        elif costs[i, j] == costs[i - 1, j] + 1:
            i, deletions = i - 1, deletions + 1
        else:
            j, insertions = j - 1, insertions + 1
    return EditCounts(substitutions, insertions + j, deletions + i, len(r))


def count_word_edits(reference: str, hypothesis: str) -> EditCounts:
    """Count the edits of words.

    >>> count_word_edits("ONE TWO", "TWO")
    EditCounts(substitutions=0, insertions=0, deletions=1, length=2)
    """
    return count_edits(reference.split(), hypothesis.split())


def count_character_edits(reference: str, hypothesis: str) -> EditCounts:
    """Count the edits of characters, including one space between words.

    >>> count_character_edits("ONE TWO", "ONE  TWO.")
    EditCounts(substitutions=0, insertions=1, deletions=0, length=7)
    """
    return count_edits(" ".join(reference.split()), " ".join(hypothesis.split()))


class ErrorRate(Metric):
    r"""Edits of all utterances divided by the length of all references.

    .. math:: \frac{S + I + D}{N}

    It may exceed one. Without any reference it is the number of insertions.

    >>> rate = ErrorRate()
    >>> rate.update([count_word_edits("ONE TWO", "ONE TOO"), count_word_edits("TEN", "TEN")])
    >>> round(rate.compute()["rate"].item(), 3)
    0.333
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)  # every device scores the whole set
        for name in EditCounts._fields:
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, edits: Iterable[EditCounts]) -> None:
        """Add the edits of utterances."""
        fields = EditCounts._fields
        for name, counts in zip(fields, zip(*edits, strict=True), strict=False):
            setattr(self, name, getattr(self, name) + sum(counts))

    def compute(self) -> dict[str, Tensor]:
        """Return the rate, and the edits that it is made of."""
        edits = {name: getattr(self, name) for name in EditCounts._fields[:3]}
        length: Any = self.length
        return {"rate": sum(edits.values()) / length.clamp(min=1), **edits}
