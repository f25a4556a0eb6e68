"""The UEA archive: ten multivariate classification data sets in `.ts` files.

https://www.timeseriesclassification.com. Samples are (F, T) in files, (T, F) in batches.
"""

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from experiment_kit.data.split import stratified
from experiment_kit.errors import UserError
from torch.utils.data import TensorDataset

from attention_sequence.data.base import SequenceData
from attention_sequence.series import Series, interpolate, locate, read


class UEA(SequenceData):
    """One data set of the UEA archive, with the papers' preparation.

    Missing values are interpolated along time, features scaled by the mean and standard
    deviation of the training samples, series zero-padded after scaling, or clipped, to
    `max_length` (the longest series of TRAIN where None).

    Protocol `validation` holds a stratified `share` of TRAIN back to choose the epoch and scores
    TEST once. Protocol `test` is the papers': the epoch is chosen on TEST itself, so that the
    result is an upper bound, there to compare with what they print.

    Raises UserError where files are absent, unreadable or empty, or disagree with each other.

    >>> data = UEA("JapaneseVowels")
    >>> data.num_features, data.num_classes, data.max_length
    (12, 9, 26)
    """

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        share: float = 0.2,
        max_length: int | None = None,
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise ValueError(f"share, the validation part of TRAIN, must be in (0, 1), got {share}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.save_hyperparameters(ignore=["max_length"])  # null is what the model is told of it
        self.problem, self.data_dir, self.protocol = name, data_dir, protocol
        self.share, self.seed, self.clip = share, seed, max_length
        self.batch_size, self.num_workers = batch_size, num_workers

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where TRAIN of a data set lies; raises UserError where it does not."""
        return locate(name, "TRAIN", None)

    @cached_property
    def source(self) -> Series:
        """TRAIN as it lies in its file; raises UserError where it has fewer than two classes."""
        found = read(locate(self.problem, "TRAIN", self.data_dir))
        if (count := len(np.unique(found.labels))) < 2:
            raise UserError(f"{found.path} has {count} class(es): classification takes two")
        return found

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Features of a step."""
        return len(self.source.samples[0])

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Classes in TRAIN."""
        return len(np.unique(self.source.labels))

    @property
    def max_length(self) -> int:  # type: ignore[override]
        """Steps that the model sees."""
        return self.clip or max(sample.shape[1] for sample in self.source.samples)

    def setup(self, stage: str) -> None:
        """Read both files, split TRAIN, and turn samples into tensors."""
        super().setup(stage)
        if hasattr(self, "parts"):
            return
        test = read(locate(self.problem, "TEST", self.data_dir))
        self._agree(test)
        everything = np.arange(len(self.source.samples))
        kept, held = everything, everything[:0]
        if self.protocol == "validation":
            kept, held = stratified(self.source.labels, self.share, self.seed)
        steps = np.concatenate([interpolate(self.source.samples[i]) for i in kept], axis=1)
        # one step has no spread to divide by; as the archive's users do, ddof = 1 and an epsilon
        self.scaling = steps.mean(1), steps.std(1, ddof=1) + np.finfo(float).eps
        self.parts = {"train": self._tensors(self.source, kept), "test": self._tensors(test)}
        holds = self.protocol == "validation"
        self.parts["val"] = self._tensors(self.source, held) if holds else self.parts["test"]

    def _agree(self, test: Series) -> None:
        if unseen := sorted(set(test.labels) - set(self.source.labels)):
            raise UserError(f"{test.path} has labels that TRAIN does not: {', '.join(unseen)}")
        widths = {len(sample) for series in (self.source, test) for sample in series.samples}
        if len(widths) > 1:
            raise UserError(f"{test.path}: series have {sorted(widths)} features, not one number")

    def _tensors(self, series: Series, chosen: np.ndarray | None = None) -> TensorDataset:
        indices = range(len(series.samples)) if chosen is None else chosen
        mean, std = self.scaling
        length, classes = self.max_length, np.unique(self.source.labels)
        x = torch.zeros(len(indices), length, len(mean))
        mask = torch.zeros(len(indices), length, dtype=torch.bool)
        for row, index in enumerate(indices):
            values = ((interpolate(series.samples[index]).T - mean) / std)[:length]
            x[row, : len(values)] = torch.from_numpy(values)
            mask[row, : len(values)] = True
        labels = np.searchsorted(classes, series.labels[list(indices)])
        return TensorDataset(x, mask, torch.from_numpy(labels))
