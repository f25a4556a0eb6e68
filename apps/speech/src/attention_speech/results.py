"""Scores of the test sets: error rates, decoding time, and a file with every hypothesis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from experiment_kit.run import write_atomically
from torch import Tensor, nn
from torchmetrics import SumMetric

from attention_speech.audio import SAMPLE_RATE
from attention_speech.data.batch import SpeechBatch
from attention_speech.wer import ErrorRate, count_character_edits, count_word_edits

PREFIXES = "", "other_"  # metrics of the first and of the second test set
_HEADER = "set\tname\tsubstitutions\tinsertions\tdeletions\twords\treference\thypothesis"


class DecodingResults(nn.Module):
    """Sums over the test sets; every device scores all of them.

    >>> texts, nothing = ["ONE TWO"], torch.zeros(1, 0)
    >>> batch = SpeechBatch(nothing, torch.tensor([16000]), nothing, nothing, texts, ["a"])
    >>> results = DecodingResults()
    >>> results.update(0, batch, ["ONE"], ["NO"], seconds=0.25)
    >>> metrics = results.compute(1)
    >>> [metrics[name].item() for name in ("wer", "deletions", "greedy_wer", "rtf")]
    [0.5, 1.0, 1.0, 0.25]
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.sets: Any = nn.ModuleList(
            nn.ModuleDict(
                {name: ErrorRate() for name in ("words", "characters", "greedy")}
                | {name: SumMetric(sync_on_compute=False) for name in ("seconds", "audio")}
            )
            for _ in PREFIXES
        )

    def reset(self) -> None:
        """Set all sums to 0."""
        self.lines = []
        for metrics in self.sets:
            for metric in metrics.values():
                metric.reset()

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
            cells = [set_index, name, *counts, *(text.replace("\t", " ") for text in pair)]
            self.lines.append("\t".join(map(str, cells)))

    def compute(self, num_sets: int) -> dict[str, Tensor]:
        """Return the rates and counts of the first sets.

        `greedy_wer` is the rate of greedy CTC, `rtf` the decoding time divided by the length of
        the speech, and `seconds` the decoding time of all sets.
        """
        values: dict[str, Tensor] = {}
        for prefix, metrics in zip(PREFIXES[:num_sets], self.sets, strict=False):
            for unit, name, rate in (("words", "", "wer"), ("characters", "cer_", "cer")):
                counts = metrics[unit].compute()
                values[f"{prefix}{rate}"] = counts.pop("rate")
                values |= {f"{prefix}{name}{kind}": n.float() for kind, n in counts.items()}
            values[f"{prefix}greedy_wer"] = metrics["greedy"].compute()["rate"]
            values[f"{prefix}rtf"] = metrics["seconds"].compute() / metrics["audio"].compute()
        seconds = [metrics["seconds"].compute() for metrics in list(self.sets)[:num_sets]]
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
