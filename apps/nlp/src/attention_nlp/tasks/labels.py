"""Predict a label or a number for a text or a pair of texts, as in GLUE."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from experiment_kit.errors import UserError, convert_user_errors
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, PearsonCorrCoef, SpearmanCorrCoef, classification
from torchmetrics.utilities.data import dim_zero_cat

from attention_nlp.tasks.base import Batch, Task, TextInfo, call_backbone


def split_by_length(batch: Batch, num_chunks: int) -> Iterator[tuple[Batch, float]]:
    """Split a batch into chunks of texts of similar length, and trim the padding of each.

    Yield each chunk and its fraction of the samples. The weighted mean of the losses and its
    gradient stay the same; less is computed.

    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> batch = [torch.tensor([[1, 2, 3], [4, 0, 0]]), mask, mask.long(), torch.tensor([0, 1])]
    >>> [(chunk[0].tolist(), fraction) for chunk, fraction in split_by_length(batch, 2)]
    [([[4]], 0.5), ([[1, 2, 3]], 0.5)]
    """
    if num_chunks == 1:
        yield batch, 1.0
        return
    ids, valid_mask, types, target = batch
    lengths = valid_mask.sum(1)
    for rows in lengths.argsort().chunk(num_chunks):
        longest = int(lengths[rows].max())
        texts = [part[rows, :longest] for part in (ids, valid_mask, types)]
        yield [*texts, target[rows]], len(rows) / len(ids)


class Matthews(classification.MulticlassMatthewsCorrCoef):
    """Matthews' correlation, 0 where all predictions or all labels are equal, as GLUE scores it.

    torchmetrics returns a small number instead, which could select an epoch.

    Source: https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html

    >>> metric = Matthews(2)
    >>> metric.update(torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1]))
    >>> metric.compute()
    tensor(0.)
    """

    def compute(self) -> Tensor:
        """Compute the correlation of all texts so far."""
        counts: Tensor = self.confmat
        if min((counts.sum(axis) > 0).sum() for axis in (0, 1)) < 2:
            return torch.zeros((), device=counts.device)
        return super().compute()


class Spearman(SpearmanCorrCoef):
    """Spearman's correlation, -1 where all predictions are equal: it is undefined there.

    >>> metric = Spearman()
    >>> metric.update(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
    >>> metric.compute()
    tensor(-1.)
    """

    def compute(self) -> Tensor:
        """Compute the correlation of all texts so far."""
        predictions = dim_zero_cat(self.preds)
        if (predictions == predictions[0]).all():
            return torch.full((), -1.0, device=predictions.device)
        return super().compute()


class _TextTask(Task):
    """Predict one vector for each text.

    Args:
        num_chunks: Parts of a batch, by length: less padding on a CPU, the same gradient.
    """

    head = "labels"

    def __init__(self, num_chunks: int = 1) -> None:
        super().__init__()
        if not 1 <= num_chunks <= 2**20:
            raise ValueError(f"model.task.num_chunks must be from 1 to {2**20}, got {num_chunks}")
        self.num_chunks = num_chunks

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute logits (B, C), or values (B, 1)."""
        got = [getattr(x, "shape", x) for x in batch]  # x is a name in a dict
        if [2 if x is None else len(x) for x in got[:4]] not in ([2, 2, 2], [2, 2, 2, 1]):
            raise UserError(f"a batch is ids, mask and types (B, N), labels (B,); got {got}")
        with convert_user_errors(IndexError, prefix="token ids or max_length: "):
            return call_backbone(model, batch[0].long(), *batch[1:3]).logits

    def _compute_error(self, logits: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the mean over the samples."""
        losses = [
            fraction * self._compute_error(self.predict(model, chunk), chunk[3])
            for chunk, fraction in split_by_length(batch, self.num_chunks)
        ]
        return torch.stack(losses).sum()


class Classification(_TextTask):
    r"""Choose one of the labels; the loss is the cross-entropy.

    F1 is of label 1 where there are two labels, else the mean over labels.

    Args:
        score_metric: Metric that selects the epoch.

    Source: https://gluebenchmark.com/tasks
    """

    def __init__(
        self, score_metric: Literal["accuracy", "f1", "matthews"] = "accuracy", num_chunks: int = 1
    ) -> None:
        super().__init__(num_chunks)
        self.score_metric = score_metric

    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make accuracy, F1, Matthews' correlation and the loss."""
        num_labels = info.num_labels
        return {
            "accuracy": classification.MulticlassAccuracy(num_labels, average="micro"),
            "f1": classification.BinaryF1Score()
            if num_labels == 2
            else classification.MulticlassF1Score(num_labels),
            "matthews": Matthews(num_labels),
            "loss": MeanMetric(),
        }

    def _compute_error(self, logits: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            raise UserError(f"labels are whole numbers, not {target.dtype}")
        with convert_user_errors(IndexError, prefix=f"labels are 0 to {logits.shape[1] - 1}: "):
            return F.cross_entropy(logits, target.long())

    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the most likely labels with the target."""
        logits, target = self.predict(model, batch).float(), batch[3]
        metrics["loss"].update(self._compute_error(logits, target), len(target))
        for name in ("accuracy", "f1", "matthews"):
            metrics[name].update(logits.argmax(-1), target)

    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute the metric `score_metric`."""
        return metrics[self.score_metric].compute()


class Regression(_TextTask):
    """Predict a number; the loss is the squared error, the score Spearman's correlation.

    The precisions bf16-true and 16-true round the targets: take bf16-mixed.

    Source: https://gluebenchmark.com/tasks (STS-B)
    """

    num_labels = range(1, 2)

    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make both correlations and the loss."""
        return {"spearman": Spearman(), "pearson": PearsonCorrCoef(), "loss": MeanMetric()}

    def _compute_error(self, logits: Tensor, target: Tensor) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return F.mse_loss(logits.squeeze(-1).to(dtype), target.to(dtype))

    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the numbers with the target."""
        values, target = self.predict(model, batch).squeeze(-1).float(), batch[3].float()
        metrics["loss"].update(F.mse_loss(values, target), len(target))
        for name in ("spearman", "pearson"):
            metrics[name].update(values, target)

    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute Spearman's correlation."""
        return metrics["spearman"].compute()
