"""Scores of the test sets: word and character error rates, decoding time, and every hypothesis."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from experiment_kit.run_files import write_atomically
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric

from attention_speech.audio import SAMPLE_RATE
from attention_speech.data.base import SpeechBatch

_HEADER = "set\tname\tsubstitutions\tinsertions\tdeletions\twords\treference\thypothesis"


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
    """Count the edits of words."""
    return count_edits(reference.split(), hypothesis.split())


def count_character_edits(reference: str, hypothesis: str) -> EditCounts:
    """Count the edits of characters, including one space between words."""
    return count_edits(" ".join(reference.split()), " ".join(hypothesis.split()))


class ErrorRate(Metric):
    r"""Edits of all utterances divided by the length of all references.

    .. math:: \frac{S + I + D}{N}

    It may exceed one. Without any reference it is the number of insertions.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)  # every device scores the whole set
        for name in EditCounts._fields:
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, edits: Iterable[EditCounts]) -> None:
        """Add the edits of utterances."""
        for name, counts in zip(EditCounts._fields, zip(*edits, strict=True), strict=False):
            setattr(self, name, getattr(self, name) + sum(counts))

    def compute(self) -> dict[str, Tensor]:
        """Return the rate, and the edits that it is made of."""
        edits = {name: getattr(self, name) for name in EditCounts._fields[:3]}
        length: Any = self.length
        return {"rate": sum(edits.values()) / length.clamp(min=1), **edits}


class DecodingResults(nn.Module):
    """Sums over the test sets; every device scores all of them."""

    def reset(self, num_sets: int) -> None:
        """Set all sums to 0."""
        self.lines: list[str] = []
        self.sets: Any = nn.ModuleList(
            nn.ModuleDict(
                {name: ErrorRate() for name in ("words", "characters", "greedy")}
                | {name: SumMetric(sync_on_compute=False) for name in ("seconds", "audio")}
            )
            for _ in range(num_sets)
        )

    def update(
        self,
        set_index: int,
        batch: SpeechBatch,
        hypotheses: Sequence[str],
        greedy: Sequence[str],
        seconds: float,
    ) -> None:
        """Add a batch of a test set, decoded in so many seconds."""
        metrics = self.sets[set_index]
        pairs = list(zip(batch.texts, hypotheses, strict=True))
        edits = [count_word_edits(*pair) for pair in pairs]
        metrics["words"].update(edits)
        metrics["characters"].update([count_character_edits(*pair) for pair in pairs])
        metrics["greedy"].update(map(count_word_edits, batch.texts, greedy))
        metrics["seconds"].update(seconds)
        metrics["audio"].update(batch.lengths.sum() / SAMPLE_RATE)
        for name, counts, pair in zip(batch.names, edits, pairs, strict=True):
            cells = [set_index, name, *counts, *pair]
            self.lines.append("\t".join(map(str, cells)))

    def compute(self, second: str) -> dict[str, Tensor]:
        """Return the rates and counts of the sets, after the first with `second` or a number.

        `greedy_wer` is the rate of greedy CTC, `rtf` the decoding time divided by the length of
        the speech, and `seconds` the decoding time of all sets.
        """
        values: dict[str, Tensor] = {}
        for index, metrics in enumerate(self.sets):
            prefix = (second or f"{index}_") if index else ""
            for unit, name, rate in (("words", "", "wer"), ("characters", "cer_", "cer")):
                counts = metrics[unit].compute()
                values[f"{prefix}{rate}"] = counts.pop("rate")
                values |= {f"{prefix}{name}{kind}": n.float() for kind, n in counts.items()}
            values[f"{prefix}greedy_wer"] = metrics["greedy"].compute()["rate"]
            values[f"{prefix}rtf"] = metrics["seconds"].compute() / metrics["audio"].compute()
        seconds = [metrics["seconds"].compute() for metrics in self.sets]
        values["seconds"] = torch.stack(seconds).sum()
        return values

    def write(self, path: Path) -> None:
        """Write the hypotheses of all devices, sorted by test set and name."""
        lines = [self.lines]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            lines = [[] for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather_object(lines, self.lines)
            if torch.distributed.get_rank():
                return
        # devices may test the same utterances
        unique = sorted({line for device in lines for line in device})
        write_atomically(path, "\n".join([_HEADER, *unique, ""]))
