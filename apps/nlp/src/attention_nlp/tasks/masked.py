"""Masked language modelling: predict the masked words, as BERT does in pre-training."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.metric import CompositionalMetric

from attention_nlp.tasks.base import IGNORED, Batch, Task, TextInfo, call_backbone


class MaskedLanguage(Task):
    r"""Predict the masked words; their mean cross-entropy is the loss and selects the epoch.

    .. math:: \mathcal{L} = -\frac{1}{M} \sum_{m=1}^{M} \log p(y_m), \qquad y_m \neq -100

    A network that takes `positions` decodes no other words.

    Source: https://arxiv.org/abs/1810.04805, section 3.1
    """

    head = "masked"
    num_labels = range(2)

    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make loss, perplexity and accuracy over masked words."""
        perplexity = CompositionalMetric(torch.exp, MeanMetric(), None)  # exp of the mean loss
        return {"loss": MeanMetric(), "perplexity": perplexity, "accuracy": MeanMetric()}

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Predict the masked words (M,), in their order."""
        # not their logits: those of a whole split exceed the memory
        return self.compute_logits(model, batch).argmax(-1)

    def compute_logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute logits (M, V) of the masked words, in their order."""
        ids, valid_mask, types, target = batch
        masked_positions = target != IGNORED  # (B, N)
        if "positions" in inspect.signature(model.forward).parameters:
            output = call_backbone(model, ids, valid_mask, types, positions=masked_positions)
            return output.logits
        return call_backbone(model, ids, valid_mask, types).logits[masked_positions]

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the mean over masked words."""
        target = batch[3]
        return F.cross_entropy(self.compute_logits(model, batch), target[target != IGNORED])

    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Add the loss and the hits of a batch."""
        target = batch[3]
        logits, words = self.compute_logits(model, batch).float(), target[target != IGNORED]
        loss = F.cross_entropy(logits, words)
        for name in ("loss", "perplexity"):
            metrics[name].update(loss, len(words))
        metrics["accuracy"].update((logits.argmax(-1) == words).float())

    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute the negative loss."""
        return -metrics["loss"].compute()
