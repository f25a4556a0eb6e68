"""Each patch of Lightning, in a trainer that runs, and of jsonargparse."""

import typing
from pathlib import Path

import pytest
import torch
from experiment_kit.cli import AppCLI
from experiment_kit.run import Run
from experiment_kit.training.callbacks import default_callbacks
from experiment_kit.training.lightning_patches import (
    ResumableEarlyStopping,
    UnfuseForClipping,
)
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from tests.kit.tiny import APP, arguments
from tests.kit.trainers import OneWeight, make_trainer


class SteepLoss(LightningModule):
    """Has a large gradient; a large eps keeps Adam from hiding how long a gradient is."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.weight = fused, nn.Parameter(torch.ones(3))

    def training_step(self, batch, batch_idx):
        return (self.weight * torch.arange(3.0)).sum() * 16

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1, eps=1.0, fused=self.fused)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_fused_adam_clips_in_mixed_precision(precision) -> None:
    def weights(fused: bool, clip: float | None) -> torch.Tensor:
        model = SteepLoss(fused)
        plugins = [MixedPrecision(precision, "cpu")]
        options = {"plugins": plugins, "gradient_clip_val": clip, "max_epochs": 1}
        make_trainer(UnfuseForClipping(), **options).fit(model, DataLoader(range(5)))
        return model.weight.detach()

    torch.testing.assert_close(weights(True, 0.5), weights(False, 0.5))
    assert (weights(True, 0.5) - weights(True, None)).abs().max() > 0.1


class ConstantLoss(OneWeight):
    """Has a loss of 1 forever, and counts its steps."""

    steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        loss = self.weight * 0 + 1
        self.log("loss", loss)
        return loss


def test_early_stopping_survives_a_resume(tmp_path) -> None:
    def fit(path: str | None) -> tuple[Trainer, ConstantLoss]:
        saved = ModelCheckpoint(tmp_path, save_last=True)
        patience = ResumableEarlyStopping("loss", patience=2, check_on_train_epoch_end=True)
        trainer = make_trainer(patience, saved, max_epochs=9, enable_checkpointing=True)
        model = ConstantLoss()
        trainer.fit(model, DataLoader(range(4)), ckpt_path=path, weights_only=False)
        return trainer, model

    trainer, model = fit(None)
    assert (trainer.current_epoch, model.steps) == (3, 12)
    resumed, model = fit(str(tmp_path / "last.ckpt"))
    assert (resumed.global_step, model.steps) == (12, 0)


class FirstEpochBest(ConstantLoss):
    """Validates best at the first epoch."""

    def validation_step(self, batch, batch_idx):
        self.log("val/score", [0.9, 0.1, 0.2, 0.3][self.current_epoch])


def rename_state(path: Path) -> None:
    """Name the state of the best checkpoint as older versions have done."""
    saved = torch.load(path, weights_only=True)
    states = saved["callbacks"].items()
    saved["callbacks"] = {k.replace("BestCheckpoint", "ModelCheckpoint"): x for k, x in states}
    assert any(key.startswith("ModelCheckpoint{") for key in saved["callbacks"])
    torch.save(saved, path)


@pytest.mark.parametrize(
    ("begins_anew", "is_old", "best"), [(False, False, 0), (False, True, 0), (True, False, 3)]
)
def test_a_moved_run_keeps_its_best_epoch(begins_anew, is_old, best, tmp_path) -> None:
    def fit(name: str, epochs: int, path: str | None = None) -> None:
        saved = default_callbacks(Run(tmp_path / name), 0, "val/score")[-2:]
        trainer = make_trainer(*saved, max_epochs=epochs, enable_checkpointing=True)
        data = DataLoader(range(2))
        trainer.fit(FirstEpochBest(), data, data, ckpt_path=path, weights_only=False)

    fit("before", 2)
    if is_old:
        rename_state(tmp_path / "before" / "checkpoints" / "step=4.ckpt")
    if not begins_anew:
        (tmp_path / "before").rename(tmp_path / "after")
    source = "before" if begins_anew else "after"
    fit("after", 4, str(tmp_path / source / "checkpoints/step=4.ckpt"))
    assert torch.load(tmp_path / "after/checkpoints/best.ckpt")["epoch"] == best
    assert (tmp_path / "after/checkpoints/step=8.ckpt").exists()


BATCHES = [f"limit_{name}_batches" for name in ("train", "val", "test", "predict")]


@pytest.fixture(scope="module")
def parse():
    """Parse options of the trainer after other code has put float before int in typing's cache."""
    for clear in typing._cleanups:
        clear()
    typing.Optional[typing.Union[float, int, None]]  # noqa: UP007, UP045
    parser = AppCLI(APP, ["fit", *arguments("runs")]).parser
    return lambda *extra: parser.parse_args(["fit", *arguments("runs", *extra)]).fit.trainer


@pytest.mark.parametrize("option", [*BATCHES, "gradient_clip_val"])
@pytest.mark.parametrize(("text", "kind"), [("1", int), ("1.0", float), ("2", int)])
def test_a_whole_number_is_an_int_and_a_share_a_float(parse, option, text, kind) -> None:
    found = parse(f"--trainer.{option}={text}")[option]
    assert (type(found), found) == (kind, kind(text))
