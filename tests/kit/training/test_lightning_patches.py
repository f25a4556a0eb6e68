"""Each patch of Lightning, in a trainer that runs, and of jsonargparse."""

import typing
from argparse import ArgumentError
from dataclasses import replace

import pytest
import torch
from experiment_kit.app_cli import AppCLI
from experiment_kit.run import Run
from experiment_kit.training.callbacks import default_callbacks
from experiment_kit.training.checkpoints import CheckpointOptions, PreemptionHandler
from experiment_kit.training.lightning_patches import UnfuseForClipping, remember_options
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule
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


class FirstEpochBest(OneWeight):
    """Validates best at the first epoch."""

    def training_step(self, batch, batch_idx):
        return self.weight * 0

    def validation_step(self, batch, batch_idx):
        self.log("val/score", [0.9, 0.1, 0.2, 0.3][self.current_epoch])


@pytest.mark.parametrize(("source", "best"), [("after", 0), ("before", 3)])
def test_a_moved_run_keeps_its_best_epoch(source, best, tmp_path) -> None:
    def fit(name: str, epochs: int, path: str | None = None) -> None:
        made = CheckpointOptions(), PreemptionHandler()
        saved = default_callbacks(Run(tmp_path / name), 0, "val/score", *made)[-2:]
        trainer = make_trainer(*saved, max_epochs=epochs, enable_checkpointing=True)
        data = DataLoader(range(2))
        trainer.fit(FirstEpochBest(), data, data, ckpt_path=path, weights_only=False)

    fit("before", 2)
    if source == "after":
        (tmp_path / "before").rename(tmp_path / "after")
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
    parser = AppCLI(replace(APP, name="own"), ["fit", *arguments("runs")]).parser  # not shared
    return lambda *extra: parser.parse_args(["fit", *arguments("runs", *extra)]).fit.trainer


@pytest.mark.parametrize("option", [*BATCHES, "gradient_clip_val"])
@pytest.mark.parametrize(("text", "kind"), [("1", int), ("1.0", float), ("2", int)])
def test_a_whole_number_is_an_int_and_a_share_a_float(parse, option, text, kind) -> None:
    found = parse(f"--trainer.{option}={text}")[option]
    assert (type(found), found) == (kind, kind(text))


def test_an_option_may_be_added() -> None:
    remember_options()
    parser = ArgumentParser(exit_on_error=False)
    with pytest.raises(ArgumentError, match="'late' is not accepted"):
        parser.parse_object({"late": 1})
    parser.add_argument("--late", type=int)
    assert parser.parse_object({"late": 1}).late == 1
