"""Gradients that are clipped under mixed precision, whichever optimiser takes them."""

from lightning.pytorch import Callback, LightningModule, Trainer


class Clippable(Callback):
    """Have gradients unscaled before they are clipped, not inside of a fused optimiser.

    A fused Adam unscales them itself, so that Lightning refuses to clip in mixed precision, even in
    bf16, where nothing is scaled. An optimiser that says that it does not, is given them unscaled.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell torch and Lightning of it where gradients are to be clipped."""
        if trainer.gradient_clip_val:
            for optimizer in trainer.optimizers:
                vars(optimizer).pop("_step_supports_amp_scaling", None)
