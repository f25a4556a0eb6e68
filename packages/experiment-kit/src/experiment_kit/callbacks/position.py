"""Resuming where a strategy restores late: the place in training comes after the data."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Reposition(Callback):
    """Have the training loader made anew once the place to resume from is known.

    FSDP2 restores a checkpoint after the optimisers are made, whose schedules have by then asked
    for the loader: it would begin with the first item of the epoch, and training in the middle.
    """

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Forget the loader; where there is none yet, nothing changes."""
        trainer.fit_loop._combined_loader = None
