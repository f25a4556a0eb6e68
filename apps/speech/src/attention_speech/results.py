"""What the test sets came to: error rates, the time of decoding, and every hypothesis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from experiment_kit.runs import write_atomically
from torch import Tensor, nn
from torchmetrics import SumMetric

from attention_speech.data.batches import Batch
from attention_speech.errors import ErrorRate, by_characters, by_words
from attention_speech.features import RATE

PREFIXES = "", "other_"  # of the first test set, and of the second
_HEAD = "set\tname\tsubstitutions\tinsertions\tdeletions\twords\treference\thypothesis"


class Results(nn.Module):
    """Sums over the test sets, which every device scores whole.

    >>> texts, nothing = ["ONE TWO"], torch.zeros(1, 0)
    >>> batch = Batch(nothing, torch.tensor([16000]), nothing, nothing, texts, ["a"])
    >>> results = Results()
    >>> results.update(0, batch, ["ONE"], ["NO"], seconds=0.25)
    >>> found = results.compute(1)
    >>> [found[name].item() for name in ("wer", "deletions", "greedy_wer", "rtf")]
    [0.5, 1.0, 1.0, 0.25]
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.sets: Any = nn.ModuleList(
            nn.ModuleDict(
                {
                    "words": ErrorRate(),
                    "characters": ErrorRate(),
                    "greedy": ErrorRate(),
                    "seconds": SumMetric(sync_on_compute=False),
                    "audio": SumMetric(sync_on_compute=False),
                }
            )
            for _ in PREFIXES
        )

    def reset(self) -> None:
        """Begin anew."""
        self.lines = []
        for metrics in self.sets:
            for metric in metrics.values():
                metric.reset()

    def update(
        self,
        number: int,
        batch: Batch,
        hypotheses: Sequence[str],
        greedy: Sequence[str],
        seconds: float,
    ) -> None:
        """Add a batch of the test set of a number, searched in so many seconds."""
        metrics = self.sets[number]
        pairs = list(zip(batch.texts, hypotheses, strict=True))
        edits = [by_words(*pair) for pair in pairs]
        metrics["words"].update(edits)
        metrics["characters"].update([by_characters(*pair) for pair in pairs])
        metrics["greedy"].update(map(by_words, batch.texts, greedy))
        metrics["seconds"].update(seconds)
        metrics["audio"].update(batch.lengths.sum() / RATE)
        for name, counts, pair in zip(batch.names, edits, pairs, strict=True):
            cells = [number, name, *counts, *(text.replace("\t", " ") for text in pair)]
            self.lines.append("\t".join(map(str, cells)))

    def compute(self, count: int) -> dict[str, Tensor]:
        """The rates and counts of the first `count` sets.

        `greedy_wer` is what greedy CTC comes to, `rtf` the seconds of search a second of speech,
        `seconds` those of all sets together.
        """
        found: dict[str, Tensor] = {}
        for prefix, metrics in zip(PREFIXES[:count], self.sets, strict=False):
            for unit, name in {"words": "", "characters": "cer_"}.items():
                rates = metrics[unit].compute()
                found[f"{prefix}{name or 'wer_'}"[:-1]] = rates.pop("rate")
                found |= {f"{prefix}{name}{key}": value.float() for key, value in rates.items()}
            found[f"{prefix}greedy_wer"] = metrics["greedy"].compute()["rate"]
            heard = metrics["audio"].compute()
            found[f"{prefix}rtf"] = metrics["seconds"].compute() / heard
        spent = [metrics["seconds"].compute() for metrics in list(self.sets)[:count]]
        found["seconds"] = torch.stack(spent).sum()
        return found

    def write(self, path: Path) -> None:
        """Write the hypotheses of all devices, by test set and name."""
        lines = [self.lines]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            lines = [[] for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather_object(lines, self.lines)
            if torch.distributed.get_rank():
                return
        every = sorted({line for part in lines for line in part})  # each device may test them all
        write_atomically(path, "\n".join([_HEAD, *every, ""]))
