"""Stopping early, in a run that may be stopped otherwise too."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason


class Patience(EarlyStopping):
    """Lightning's early stopping, which a run that ended by it and is resumed does not forget.

    Without this a run that was killed between its last epoch and its result would train on.

    Source: https://lightning.ai/docs/pytorch/stable/common/early_stopping.html

    >>> Patience("val/score", mode="max", patience=2).patience
    2
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training before its first batch, where it had been stopped."""
        stopped = self.stopping_reason is not EarlyStoppingReason.NOT_STOPPED
        trainer.should_stop = trainer.should_stop or stopped
