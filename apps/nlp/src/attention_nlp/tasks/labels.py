"""A label or a number for a text or a pair of texts: GLUE and its like."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassMatthewsCorrCoef,
)
from torchmetrics.utilities.data import dim_zero_cat

from attention_nlp.tasks.base import Batch, Facts, Task, forward


def by_length(batch: Batch, parts: int) -> Iterator[tuple[Batch, float]]:
    """Split a batch into parts of like length, each without the padding it has no use for.

    Yields each part and its share of the samples. The mean over all samples is what it was, and
    so is its gradient; less is computed.

    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> batch = [torch.tensor([[1, 2, 3], [4, 0, 0]]), mask, mask.long(), torch.tensor([0, 1])]
    >>> [(part[0].tolist(), share) for part, share in by_length(batch, 2)]
    [([[4]], 0.5), ([[1, 2, 3]], 0.5)]
    """
    ids, mask, types, target = batch
    if parts == 1:
        yield batch, 1.0
        return
    lengths = mask.sum(1)
    for chosen in lengths.argsort().chunk(parts):
        longest = int(lengths[chosen].max())
        texts = [part[chosen, :longest] for part in (ids, mask, types)]
        yield [*texts, target[chosen]], len(chosen) / len(ids)


class Matthews(MulticlassMatthewsCorrCoef):
    """Matthews' correlation, 0 where all guesses or all truths are alike, as GLUE scores it.

    The library has a small number in its place, which would choose an epoch.

    Source: https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html

    >>> metric = Matthews(2)
    >>> metric.update(torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1]))
    >>> metric.compute()
    tensor(0.)
    """

    def compute(self) -> Tensor:
        """Of all texts so far."""
        counts: Tensor = self.confmat
        if min((counts.sum(axis) > 0).sum() for axis in (0, 1)) < 2:
            return torch.zeros((), device=counts.device)
        return super().compute()


class Spearman(SpearmanCorrCoef):
    """Spearman's correlation, -1 where all guesses are alike: there is none, and nothing is worse.

    >>> metric = Spearman()
    >>> metric.update(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
    >>> metric.compute()
    tensor(-1.)
    """

    def compute(self) -> Tensor:
        """Of all texts so far."""
        guesses = dim_zero_cat(self.preds)
        if (guesses == guesses[0]).all():
            return torch.full((), -1.0, device=guesses.device)
        return super().compute()


class _Pooled(Task):
    head = "labels"

    def __init__(self, parts: int = 1) -> None:
        super().__init__()
        if parts < 1:
            raise ValueError(f"model.task.parts must be at least 1, got {parts}")
        self.parts = parts

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits (B, C), or values (B, 1)."""
        return forward(model, *batch[:3]).logits

    def _error(self, logits: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over the samples, by parts of like length."""
        losses = [
            share * self._error(self.predict(model, part), part[3])
            for part, share in by_length(batch, self.parts)
        ]
        return torch.stack(losses).sum()


class Classification(_Pooled):
    r"""One of the labels, learned by cross-entropy; `chosen_by` is what chooses the epoch.

    F1 is of label 1 where there are two labels, and the mean over labels where there are more.
    `parts` splits each batch by length, which saves padding on a CPU and changes no gradient.

    Source: https://gluebenchmark.com/tasks

    >>> Classification("f1").metrics(Facts(2, 10, 8, 0)).keys()
    dict_keys(['accuracy', 'f1', 'matthews', 'loss'])
    """

    def __init__(
        self, chosen_by: Literal["accuracy", "f1", "matthews"] = "accuracy", parts: int = 1
    ) -> None:
        super().__init__(parts)
        self.chosen_by = chosen_by

    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """Accuracy, F1, Matthews' correlation and the loss."""
        count = facts.num_labels
        binary = count == 2
        return {
            "accuracy": MulticlassAccuracy(count, average="micro"),
            "f1": BinaryF1Score() if binary else MulticlassF1Score(count),
            "matthews": Matthews(count),
            "loss": MeanMetric(),
        }

    def _error(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target)

    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the likeliest labels."""
        logits, target = self.predict(model, batch).float(), batch[3]
        metrics["loss"].update(F.cross_entropy(logits, target), len(target))
        for name in ("accuracy", "f1", "matthews"):
            metrics[name].update(logits.argmax(-1), target)

    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """The metric that chooses the epoch."""
        return metrics[self.chosen_by].compute()


class Regression(_Pooled):
    """A number, learned by its squared error; Spearman's correlation chooses the epoch.

    Source: https://gluebenchmark.com/tasks (STS-B)

    >>> Regression().metrics(Facts(1, 10, 8, 0)).keys()
    dict_keys(['spearman', 'pearson', 'loss'])
    """

    labels = range(1, 2)

    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """Both correlations and the loss."""
        return {
            "spearman": Spearman(),
            "pearson": PearsonCorrCoef(),
            "loss": MeanMetric(),
        }

    def _error(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(logits.squeeze(-1), target)

    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the numbers."""
        values, target = self.predict(model, batch).squeeze(-1).float(), batch[3].float()
        metrics["loss"].update(F.mse_loss(values, target), len(target))
        for name in ("spearman", "pearson"):
            metrics[name].update(values, target)

    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Spearman's correlation."""
        return metrics["spearman"].compute()
