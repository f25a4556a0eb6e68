"""Training and scoring of a sequence classifier, with the four slots of every mechanism."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, SelfAttention
from attention_core.attach import select_layers
from experiment_kit.errors import UserError
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention_sequence.models import Attention, Classifier, Size

Batch = Sequence[Tensor]  # x (B, N, F), or ids (B, N) or (B, 2, N); mask without F; label (B,)


def score(accuracy: Tensor, loss: Tensor, samples: int) -> Tensor:
    r"""Accuracy, its ties (a small validation set has many) broken by the loss.

    .. math:: \mathrm{accuracy} - \frac{1}{2n} \frac{\mathrm{loss}}{1 + \mathrm{loss}}

    >>> score(torch.tensor(1.0), torch.tensor(1.0), samples=4)
    tensor(0.9375)
    """
    return accuracy - loss / (1 + loss) / (2 * samples)


def bound(kernel: Callable[..., nn.Module] | None, length: int) -> Any:
    """A factory of kernels that has been told the longest sequence, where its class asks for it.

    Linformer and Primalformer are made for one `length`, which the data knows and no config. Raises
    ValueError for a config that says another, instead of leaving it aside.

    >>> from attention_core import AGF
    >>> bound(AGF, 5) is AGF
    True
    """
    # a class of a config comes as an argument of the partial that makes it
    parts = (*getattr(kernel, "args", ()), getattr(kernel, "func", None), kernel)
    candidates = [part for part in parts if callable(part)]
    asked = [inspect.signature(part).parameters.get("length") for part in candidates]
    if kernel is None or not any(asked):
        return kernel
    said, default = getattr(kernel, "keywords", {}).get("length"), next(filter(None, asked)).default
    if said not in (None, default, length):
        raise ValueError(f"a kernel's length is that of the data, {length}: leave out {said}")
    return partial(kernel, length=length)


class SequenceClassifier(LightningModule):
    r"""A classifier whose attention has slots, trained by cross-entropy.

    .. math:: \mathcal{L} = \mathrm{CE} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the penalty of kernels that have one (AGF). `num_features`, `num_classes` and
    `max_length` come from the data. `network` makes the model from its size, the attention of
    each layer, and `mask`: that of the UEA experiments by default. `layers` says which layers the
    slots sit in; the others stay plain. `mask: false` lets attention see padding, as the papers'
    code does for time series.

    Raises ValueError for heads that do not divide the width and for layers that do not exist;
    UserError for sequences that the network or a kernel does not take.

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
        network: Callable[[Size, Attention, bool], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # what the config says, not the objects made of it
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.schedule = schedule or Constant()
        chosen, kernel = select_layers(layers, depth), bound(kernel, max_length)

        def attention(layer: int) -> SelfAttention:
            if layer not in chosen:
                return SelfAttention(width, heads, dropout=attention_dropout)
            return SelfAttention(
                width, heads, filter, kernel, tokens, reparam, dropout=attention_dropout
            )

        size = Size(num_features, num_classes, max_length, width, hidden, depth, dropout)
        self.model: Any = (network or Classifier)(size, attention, mask)
        self.accuracy = nn.ModuleDict(
            {stage: MulticlassAccuracy(num_classes, average="micro") for stage in ("val", "test")}
        )
        self.loss = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, C)."""
        try:
            return self.model(x, mask)
        except ValueError as error:  # of a kernel that this data does not suit
            raise UserError(str(error)) from error

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy, and what the kernels add."""
        x, mask, label = batch
        return penalised(self, lambda: F.cross_entropy(self(x, mask), label))

    def _evaluate(self, batch: Batch, stage: str) -> None:
        x, mask, label = batch
        logits = self(x, mask)
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
        return self(x, mask)

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return self.model.layers()

    def token_mask(self, batch: Batch) -> Tensor:
        """Which steps are real, for the spectral monitor; of pairs, first by first."""
        return batch[1].flatten(0, -2)

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        optimizer = self.make_optimizer(decay_groups(self, self.weight_decay))
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
