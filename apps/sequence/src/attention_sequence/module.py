"""Training and scoring of a sequence classifier, with the four slots of every mechanism."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, SelfAttention
from attention_core.attach import select
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention_sequence.models import Classifier

Batch = Sequence[Tensor]  # x (B, N, F), mask (B, N), label (B,)


def score(accuracy: Tensor, loss: Tensor, samples: int) -> Tensor:
    r"""Accuracy, its ties (a small validation set has many) broken by the loss.

    .. math:: \mathrm{accuracy} - \frac{1}{2n} \frac{\mathrm{loss}}{1 + \mathrm{loss}}

    >>> score(torch.tensor(1.0), torch.tensor(1.0), samples=4)
    tensor(0.9375)
    """
    return accuracy - loss / (1 + loss) / (2 * samples)


class SequenceClassifier(LightningModule):
    r"""A classifier whose attention has slots, trained by cross-entropy.

    .. math:: \mathcal{L} = \mathrm{CE} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the penalty of kernels that have one (AGF). `num_features`, `num_classes` and
    `max_length` come from the data. `layers` says which layers the slots sit in; the others
    stay plain. `mask: false` lets attention see padding, as the papers' code does.

    Raises ValueError for heads that do not divide the width and for layers that do not exist.

    >>> SequenceClassifier(3, 4, 5, width=8, heads=2, depth=1).model.head.out_features
    4
    """

    accuracy: Any
    loss: Any

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        max_length: int,
        width: int = 512,
        heads: int = 8,
        depth: int = 2,
        hidden: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str = ":",
        mask: bool = True,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.RAdam,
        weight_decay: float = 0.0,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # what the config says, not the objects made of it
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.schedule = schedule or Constant()
        chosen = select(layers, depth)

        def attention(layer: int) -> SelfAttention:
            if layer not in chosen:
                return SelfAttention(width, heads, dropout=attention_dropout)
            return SelfAttention(
                width, heads, filter, kernel, tokens, reparam, dropout=attention_dropout
            )

        self.model = Classifier(
            num_features, num_classes, max_length, width, hidden, depth, dropout, attention, mask
        )
        self.accuracy = nn.ModuleDict(
            {stage: MulticlassAccuracy(num_classes, average="micro") for stage in ("val", "test")}
        )
        self.loss = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy, and what the kernels add."""
        x, mask, label = batch
        return penalised(self, lambda: F.cross_entropy(self.model(x, mask), label))

    def _evaluate(self, batch: Batch, stage: str) -> None:
        x, mask, label = batch
        logits = self.model(x, mask)
        self.accuracy[stage].update(logits, label)
        self.loss[stage].update(F.cross_entropy(logits, label), len(x))
        self.log(f"{stage}/loss", self.loss[stage])
        self.log(f"{stage}/accuracy", self.accuracy[stage], prog_bar=True)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the samples that choose the epoch."""
        self._evaluate(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log what chooses the epoch."""
        accuracy, loss = self.accuracy["val"].compute(), self.loss["val"].compute()
        loader: Any = self.trainer.val_dataloaders
        self.log("val/score", score(accuracy, loss, len(loader.dataset)))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the test set."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logits (B, C)."""
        x, mask, *_ = batch
        return self.model(x, mask)

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return self.model.layers()

    def token_mask(self, batch: Batch) -> Tensor:
        """Which steps are real, for the spectral monitor."""
        return batch[1]

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        optimizer = self.make_optimizer(decay_groups(self, self.weight_decay))
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
