"""A quiet trainer on the CPU, and a callback that ends it with a checkpoint."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

SILENT = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")


def make_trainer(*callbacks: Callback, **options: Any) -> Trainer:
    defaults = {**dict.fromkeys(SILENT, False), "accelerator": "cpu", "devices": 1}
    defaults |= {"num_sanity_val_steps": 0, "use_distributed_sampler": False}
    return Trainer(callbacks=[*callbacks], **defaults | options)


class OneWeight(LightningModule):
    """A weight to train; a subclass defines the step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SaveAndExit(Callback):
    """Save and exit in a hook of an epoch, at a batch if one is given."""

    def __init__(self, path, hook: str, epoch: int, batch: int | None = None) -> None:
        self.path, self.epoch, self.batch = path, epoch, batch
        setattr(self, hook, self.save_and_exit)

    def save_and_exit(self, trainer, *_):
        at = trainer.fit_loop.epoch_loop.batch_idx
        if trainer.current_epoch == self.epoch and self.batch in (None, at):
            trainer.save_checkpoint(self.path)
            raise SystemExit(75)
