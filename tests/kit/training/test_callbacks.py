"""Seeds and guards, in a trainer that runs."""

import pytest
import torch
from experiment_kit.errors import UserError
from experiment_kit.training.callbacks import FiniteLoss, StepSeed
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}


class Noisy(LightningModule):
    """Returns the given losses, after drawing a number."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses, self.drawn = losses, []
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.drawn.append(torch.rand(()).item())
        return self.weight * 0 + self.losses[batch_idx]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class DrawingMonitor(Callback):
    """Draws random numbers between the steps."""

    def on_train_batch_end(self, *_):
        torch.rand(7)


def train(losses: list[float], *callbacks: Callback) -> Noisy:
    model = Noisy(losses)
    trainer = Trainer(
        max_epochs=1,
        callbacks=list(callbacks),
        accelerator="cpu",
        enable_checkpointing=False,
        **QUIET,
    )
    trainer.fit(model, DataLoader(range(len(losses))))
    return model


def test_a_step_draws_the_same_whatever_ran_before() -> None:
    alone = train([1.0] * 4, StepSeed(3)).drawn
    disturbed = train([1.0] * 4, StepSeed(3), DrawingMonitor()).drawn
    other_seed = train([1.0] * 4, StepSeed(4)).drawn
    assert alone == disturbed != other_seed
    assert len(set(alone)) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(bad: float) -> None:
    with pytest.raises(UserError, match=r"loss is (nan|inf) at step 2 \(epoch 0, batch 2\)"):
        train([1.0, 1.0, bad, 1.0], FiniteLoss())
