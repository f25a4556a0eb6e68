"""The words behind a text's masks: what BERT-like networks are pre-trained on."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from attention_nlp.tasks.base import Batch, Facts, Task, forward

IGNORED = -100  # the target where nothing is asked


class Perplexity(MeanMetric):
    """The exponential of a mean loss.

    >>> metric = Perplexity()
    >>> metric.update(0.0, 3)
    >>> metric.compute()
    tensor(1.)
    """

    def compute(self) -> Tensor:
        """Of all losses so far."""
        return super().compute().exp()


class MaskedLanguage(Task):
    r"""The masked words, learned by cross-entropy over those that the target asks for.

    .. math:: \mathcal{L} = -\frac{1}{M} \sum_{m=1}^{M} \log p(y_m), \qquad y_m \neq -100

    A network that takes `positions` decodes no other words. What chooses the epoch is the loss.

    Source: https://arxiv.org/abs/1810.04805, section 3.1

    >>> MaskedLanguage().metrics(Facts(0, 11, 8, 0)).keys()
    dict_keys(['loss', 'perplexity', 'accuracy'])
    """

    head = "masked"
    labels = range(2)

    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """Loss, perplexity and accuracy, over masked words."""
        return {"loss": MeanMetric(), "perplexity": Perplexity(), "accuracy": MeanMetric()}

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """The likeliest words (M,) where words are asked for, in their order."""
        # not their logits, which of a whole part are more than memory holds
        return self.logits(model, batch).argmax(-1)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits (M, V) of the words that are asked for, in their order."""
        ids, mask, types, target = batch
        asked = target != IGNORED
        if "positions" in inspect.signature(model.forward).parameters:
            return forward(model, ids, mask, types, positions=asked).logits
        return forward(model, ids, mask, types).logits[asked]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over masked words."""
        return F.cross_entropy(self.logits(model, batch), _asked(batch))

    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the likeliest words."""
        logits, words = self.logits(model, batch).float(), _asked(batch)
        loss = F.cross_entropy(logits, words)
        for name in ("loss", "perplexity"):
            metrics[name].update(loss, len(words))
        metrics["accuracy"].update((logits.argmax(-1) == words).float())

    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """The loss, its sign turned."""
        return -metrics["loss"].compute()


def _asked(batch: Batch) -> Tensor:
    target = batch[3]
    return target[target != IGNORED]
