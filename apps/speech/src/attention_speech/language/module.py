"""Training and scoring of a language model."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.runs import write_atomically
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import MeanMetric

from attention_speech.models.lm import LanguageSize, language_network, save
from attention_speech.vocabulary import BLANK, Vocabulary


class LanguageModel(LightningModule):
    r"""A Transformer that says what follows, chosen by its perplexity.

    .. math:: \mathcal{L} = -\frac{1}{N} \sum_n \log p(y_n | y_{<n})

    Testing writes `language_model.pt` into the run's folder, which `model.language_model` of the
    recogniser names; both need one vocabulary.

    Source: https://arxiv.org/abs/1706.03762

    >>> size = LanguageSize(width=8, heads=2, depth=1, hidden=8)
    >>> LanguageModel(7, "x.model", size=size)(torch.tensor([[1, 4, 2], [1, 2, 0]])).shape
    torch.Size([3])
    """

    def __init__(
        self,
        vocab_size: int,
        tokenizer: str,
        *,
        size: LanguageSize,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.0,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.size, self.vocabulary = size, Vocabulary(tokenizer)
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.schedule = schedule or Constant()
        self.network: Any = language_network(size, vocab_size)
        self.surprise: Any = MeanMetric()

    def forward(self, batch: Tensor) -> Tensor:
        """What each real token costs, (N,)."""
        targets = batch[:, 1:]
        logits = self.network(batch[:, :-1]).float()
        real = targets != BLANK
        return F.cross_entropy(logits[real], targets[real], reduction="none")

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The mean over tokens."""
        loss = self(batch).mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Score the texts that choose the epoch."""
        self.surprise.update(self(batch))

    test_step = validation_step

    def _perplexity(self, stage: str) -> float:
        mean = self.surprise.compute().item()
        self.surprise.reset()
        self.log(f"{stage}/perplexity", math.exp(mean))
        return mean

    def on_validation_epoch_end(self) -> None:
        """Log what chooses the epoch."""
        self.log("val/score", -self._perplexity("val"), prog_bar=True)

    def on_test_epoch_end(self) -> None:
        """Log the perplexity, and write the model that has it."""
        self._perplexity("test")
        buffer = io.BytesIO()
        torch.save(save(self.network, self.size, self.vocabulary), buffer)
        path = Path(self.trainer.default_root_dir) / "language_model.pt"
        write_atomically(path, buffer.getvalue())

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        optimizer = self.make_optimizer(decay_groups(self.network, self.weight_decay))
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
