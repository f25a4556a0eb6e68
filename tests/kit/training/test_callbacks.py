"""Seeds and guards of a run, and the timer on a clock that a test turns."""

from types import SimpleNamespace

import pytest
import torch
from experiment_kit.errors import UserError
from experiment_kit.run import Run
from experiment_kit.training import callbacks
from experiment_kit.training.callbacks import FiniteSteps, FirstEpochsValidation, StepSeed
from experiment_kit.training.spectral_monitor import SpectralMonitor
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch.utils.data import DataLoader

from tests.kit.trainers import OneWeight, SaveAndExit, make_trainer

MONITOR = SpectralMonitor()


class Noisy(OneWeight):
    """Returns the given losses, after drawing a number."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses, self.drawn = losses, []

    def training_step(self, batch, batch_idx):
        self.drawn.append(torch.rand(()).item())
        return self.weight * 0 + self.losses[batch_idx]


def train(losses: list[float], *callbacks: Callback) -> Noisy:
    model = Noisy(losses)
    make_trainer(*callbacks, max_epochs=1).fit(model, DataLoader(range(len(losses))))
    return model


def test_a_step_draws_the_same_whatever_ran_before() -> None:
    alone = train([1.0] * 4, StepSeed(3)).drawn
    draw = LambdaCallback(on_train_batch_end=lambda *_: torch.rand(7))
    assert alone == train([1.0] * 4, StepSeed(3), draw).drawn != train([1.0] * 4, StepSeed(4)).drawn
    assert len(set(alone)) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(tmp_path, bad: float) -> None:
    with pytest.raises(UserError, match=r"loss is (nan|inf) at step 2 \(epoch 0, batch 2\)"):
        train([1.0, 1.0, bad, 1.0], FiniteSteps(Run(tmp_path)))


class Worsening(OneWeight):
    """Is best untrained; notes the epochs of its validations."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[int] = []

    def training_step(self, batch, batch_idx):
        return self.weight

    def validation_step(self, batch, batch_idx):
        self.log("val/score", self.weight)

    def on_validation_epoch_end(self) -> None:
        self.validated.append(self.trainer.global_step)


def fit_worsening(*extra: Callback, ckpt_path=None, folder=None):
    model, best = Worsening(), ModelCheckpoint(folder, "best", "val/score", mode="max")
    options = {"max_epochs": 6, "check_val_every_n_epoch": 2, "enable_checkpointing": True}
    loader = DataLoader(range(3))
    make_trainer(*extra, best, **options).fit(model, loader, loader, ckpt_path=ckpt_path)
    return model, best


def test_the_untrained_network_is_scored(tmp_path) -> None:
    """And the first epoch, then every second; an epoch has 3 steps."""
    model, best = fit_worsening(FirstEpochsValidation(), folder=tmp_path)
    assert model.validated == [0, 3, 6, 12, 18]
    assert torch.load(best.best_model_path, weights_only=True)["global_step"] == 0
    model, best = fit_worsening(folder=tmp_path / "without")
    assert model.validated == [6, 12, 18]
    assert torch.load(best.best_model_path, weights_only=True)["global_step"] == 6


@pytest.mark.parametrize(("epoch", "rest"), [(0, [3, 6, 12, 18]), (2, [12, 18])])
def test_a_resumed_run_goes_on_with_its_validations(tmp_path, epoch: int, rest: list[int]) -> None:
    stop = SaveAndExit(tmp_path / "stop.ckpt", "on_train_batch_start", epoch, 1)
    with pytest.raises(SystemExit):
        fit_worsening(FirstEpochsValidation(), stop, folder=tmp_path)
    model, _ = fit_worsening(FirstEpochsValidation(), ckpt_path=stop.path, folder=tmp_path)
    assert model.validated == rest


@pytest.fixture
def at(monkeypatch):
    """Call a hook of a fresh callback at a time of the clock."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    timed, trainer = callbacks.EpochTimer(), SimpleNamespace(callbacks=[MONITOR])
    MONITOR.untimed_seconds = 0.0

    def call(now: float, hook: str, *batch) -> callbacks.EpochTimer:
        clock.now = now
        getattr(timed, hook)(trainer, None, *batch)
        return timed

    return call


def test_validation_and_the_monitor_are_left_out(at) -> None:
    MONITOR.untimed_seconds = 4.0  # in earlier epochs
    at(10, "on_validation_start")  # the sanity check, before any training
    at(20, "on_train_epoch_start")
    at(21, "on_train_batch_start", None, 0)
    MONITOR.untimed_seconds = 7.0
    at(25, "on_validation_start")
    at(32, "on_train_batch_start", None, 1)  # 7 s of validation and saving
    at(33, "on_validation_start")
    assert at(53, "on_train_epoch_end").collect_metrics() == {"time/epoch": 33 - 20 - 7 - 3}
