"""Stop at the first loss that is not a number, and say where."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from experiment_kit.errors import UserError


class FiniteLoss(Callback):
    """Refuse to go on from a loss that is nan or infinite, naming step, epoch and batch."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember which batch comes."""
        self.batch = batch_idx

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Look before the gradients spread it into the weights; all ranks stop where one must."""
        bad = not bool(torch.isfinite(loss).all())
        if trainer.strategy.reduce_boolean_decision(bad, all=False):
            raise UserError(
                f"the training loss is {loss.item()} at step {trainer.global_step} (epoch "
                f"{trainer.current_epoch}, batch {self.batch}): lower the learning rate or look "
                "at that batch; the last checkpoint is from before it"
            )
