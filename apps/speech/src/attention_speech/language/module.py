"""Training and testing of a language model."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_core.checks import check_nonnegative
from experiment_kit.parsing import save_plain_hyperparameters
from experiment_kit.run_files import write_atomically
from experiment_kit.training import optim
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import MeanMetric

from attention_speech.models import lm
from attention_speech.tokenizer import BLANK, Tokenizer


class LanguageModel(LightningModule):
    r"""A Transformer that predicts the next token; perplexity selects the epoch.

    .. math:: \mathcal{L} = -\frac{1}{N} \sum_n \log p(y_n | y_{<n})

    Testing writes `language_model.pt` into the run's folder. Pass its path to the recognizer as
    `model.language_model`; both must use the same tokenizer.

    Args:
        vocab_size: Number of token ids, from the data.
        tokenizer_file: File of the tokenizer, from the data.
        network: Sizes of the network.
        optimizer: Class of the optimizer and its arguments.
        weight_decay: Decay of matrices.
        schedule: Learning rate by step; null is constant.

    Source: https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        vocab_size: int,
        tokenizer_file: str,
        *,
        network: lm.LanguageModelConfig,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.0,
        schedule: optim.Schedule | None = None,
    ) -> None:
        super().__init__()
        check_nonnegative("model", weight_decay=weight_decay)
        optim.check_optimizer(optimizer, weight_decay)
        save_plain_hyperparameters(self)
        self.config, self.tokenizer = network, Tokenizer(tokenizer_file)
        self.build_optimizer, self.weight_decay = optimizer, weight_decay
        self.schedule = schedule or optim.ConstantSchedule()
        self.network: Any = lm.build_language_model(network, vocab_size)
        self.mean_loss: Any = MeanMetric()

    def forward(self, batch: Tensor) -> Tensor:
        """Return the cross-entropy of each valid token, (N,)."""
        targets = batch[:, 1:]
        logits = self.network(batch[:, :-1]).float()
        valid = targets != BLANK
        return F.cross_entropy(logits[valid], targets[valid], reduction="none")

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the mean over tokens."""
        loss = self(batch).mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Add the cross-entropies of a batch to the mean."""
        self.mean_loss.update(self(batch))

    test_step = validation_step

    def _log_perplexity(self, stage: str) -> float:
        mean = self.mean_loss.compute().item()
        self.mean_loss.reset()
        self.log(f"{stage}/perplexity", math.exp(mean))
        return mean

    def on_validation_epoch_end(self) -> None:
        """Log the score that selects the epoch."""
        self.log("val/score", -self._log_perplexity("val"), prog_bar=True)

    def on_test_epoch_end(self) -> None:
        """Log the perplexity, and write the model's file."""
        self._log_perplexity("test")
        buffer = io.BytesIO()
        torch.save(lm.pack_language_model(self.network, self.config, self.tokenizer), buffer)
        path = Path(self.trainer.default_root_dir) / "language_model.pt"
        write_atomically(path, buffer.getvalue())

    def configure_optimizers(self) -> Any:
        """Return the optimizer over parameters with and without decay, and the schedule."""
        groups = optim.param_groups_weight_decay(self.network, self.weight_decay)
        optimizer = optim.build_optimizer(self.build_optimizer, groups)
        return [optimizer], [optim.build_lr_scheduler(self.schedule, optimizer, self.trainer)]
