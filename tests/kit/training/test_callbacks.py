"""Guards and instruments, on a trainer that runs for real."""

import json
from types import SimpleNamespace

import pytest
import torch
from attention_core import AGF, GFSA, SelfAttention, spectral
from experiment_kit.callbacks import Clippable, FiniteLoss, Patience, StepSeed
from experiment_kit.diagnostics.monitor import _log_measures, eval_mode, measure_spectra
from experiment_kit.equipment import equipment
from experiment_kit.errors import UserError
from experiment_kit.runs import Run
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter


class Noisy(LightningModule):
    """Loses what it is told to lose, after drawing a number."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses, self.drawn = losses, []
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.drawn.append(torch.rand(()).item())
        return self.weight * 0 + self.losses[batch_idx]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Greedy(Callback):
    """Draws between the steps, as a monitor might."""

    def on_train_batch_end(self, *_):
        torch.rand(7)


def train(losses: list[float], *callbacks: Callback) -> Noisy:
    model = Noisy(losses)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(
        max_epochs=1,
        callbacks=list(callbacks),
        accelerator="cpu",
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(model, DataLoader(range(len(losses))))
    return model


class Steep(LightningModule):
    """Far above its minimum; a large eps keeps Adam from hiding how long a gradient is."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.weight = fused, nn.Parameter(torch.ones(3))

    def training_step(self, batch, batch_idx):
        return (self.weight * torch.arange(3.0)).sum() * 16

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1, eps=1.0, fused=self.fused)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_fused_optimiser_is_given_clipped_gradients_in_mixed_precision(precision) -> None:
    def weights(fused: bool, clip: float | None) -> torch.Tensor:
        model = Steep(fused)
        Trainer(
            max_epochs=1, callbacks=[Clippable()], accelerator="cpu",
            plugins=[MixedPrecision(precision, "cpu")], gradient_clip_val=clip,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            logger=False,
        ).fit(model, DataLoader(range(5)))  # fmt: skip
        return model.weight.detach()

    torch.testing.assert_close(weights(True, 0.5), weights(False, 0.5))
    assert (weights(True, 0.5) - weights(True, None)).abs().max() > 0.1


class Stuck(Noisy):
    """Never gets any better."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


def test_a_run_whose_patience_ran_out_does_not_train_on_when_resumed(tmp_path) -> None:
    def fit(path: str | None) -> tuple[Trainer, Stuck]:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        saved = ModelCheckpoint(tmp_path, save_last=True)
        patience = Patience("loss", patience=2, check_on_train_epoch_end=True)
        trainer = Trainer(max_epochs=9, callbacks=[patience, saved], accelerator="cpu", **quiet)
        model = Stuck([1.0] * 4)
        trainer.fit(model, DataLoader(range(4)), ckpt_path=path, weights_only=False)
        return trainer, model

    trainer, model = fit(None)
    assert (trainer.current_epoch, len(model.drawn)) == (3, 12)
    resumed, model = fit(str(tmp_path / "last.ckpt"))
    assert (resumed.global_step, model.drawn) == (12, [])


class Scored(Noisy):
    """Is best at the first epoch."""

    def validation_step(self, batch, batch_idx):
        self.log("val/score", [0.9, 0.1, 0.2, 0.3][self.current_epoch])


@pytest.mark.parametrize(("begins_anew", "best"), [(False, 0), (True, 3)])
def test_a_run_that_moved_keeps_its_best_epoch(begins_anew, best, tmp_path) -> None:
    def fit(name: str, epochs: int, path: str | None = None) -> None:
        saved = equipment(Run(tmp_path / name), 0, "val/score")[-2:]
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        trainer = Trainer(max_epochs=epochs, callbacks=saved, accelerator="cpu", **quiet)
        data = DataLoader(range(2))
        trainer.fit(Scored([1.0] * 2), data, data, ckpt_path=path, weights_only=False)

    fit("before", 2)
    if not begins_anew:
        (tmp_path / "before").rename(tmp_path / "after")
    source = "before" if begins_anew else "after"
    fit("after", 4, str(tmp_path / source / "checkpoints/step=4.ckpt"))
    assert torch.load(tmp_path / "after/checkpoints/best.ckpt")["epoch"] == best
    assert (tmp_path / "after/checkpoints/step=8.ckpt").exists()


def test_every_module_is_left_in_its_own_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(), nn.Dropout()))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    assert (
        [module.training for module in model.modules()] == before == [True, True, True, False, True]
    )


def test_a_step_draws_the_same_whatever_ran_before() -> None:
    alone = train([1.0] * 4, StepSeed(3)).drawn
    disturbed = train([1.0] * 4, StepSeed(3), Greedy()).drawn
    other_seed = train([1.0] * 4, StepSeed(4)).drawn
    assert alone == disturbed != other_seed
    assert len(set(alone)) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(bad: float) -> None:
    with pytest.raises(UserError, match=r"loss is (nan|inf) at step 2 \(epoch 0, batch 2\)"):
        train([1.0, 1.0, bad, 1.0], FiniteLoss())


class Watched(nn.Module):
    """Two attention layers that offer what the monitor wants."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.first = SelfAttention(8, 2, filter=lambda heads: GFSA(heads, wK=0.25))
        self.second = SelfAttention(8, 2, kernel=lambda dim, heads: AGF(dim, heads, K=2))
        self.dropout = nn.Dropout(0.5)

    def layers(self):
        return [self.embed, self.first, self.second]

    def token_mask(self, batch):
        return batch[1]

    def predict_step(self, batch, batch_idx):
        x, mask = batch
        return self.dropout(self.second(self.first(self.embed(x), mask), mask))


def test_the_monitor_measures_what_the_definitions_say() -> None:
    model = Watched().train()
    x, mask = torch.randn(3, 7, 5), torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    measures = measure_spectra(model, [x, mask])
    assert model.training
    assert len(measures["depth"]) == 3
    embedded = model.embed(x)
    assert measures["depth"][0]["hfc_lfc"] == pytest.approx(
        spectral.hfc_lfc(embedded, mask).mean().item()
    )
    assert measures["depth"][0]["token_cosine"] == pytest.approx(
        spectral.token_cosine(embedded, mask).mean().item()
    )
    assert [len(layer) for layer in measures["response"]] == [4, 4]
    assert measures["coefficients"]["first.filter.wK"] == [0.25, 0.25]
    assert measures["coefficients"]["second.kernel.theta"] == [1.0, 0.0, 0.0]
    json.dumps(measures)
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("singular_values", ["filtered", "generated", "learned", "ones"])
def test_every_ablation_of_agf_can_be_watched(singular_values: str, tmp_path) -> None:
    model = Watched()
    model.second = SelfAttention(
        8, 2, kernel=lambda dim, heads: AGF(dim, heads, singular_values=singular_values)
    )
    measures = measure_spectra(model, [torch.randn(3, 7, 5), torch.ones(3, 7, dtype=torch.bool)])
    with SummaryWriter(tmp_path) as board:
        trainer = SimpleNamespace(logger=SimpleNamespace(experiment=board), global_step=1)
        _log_measures(trainer, measures, figures=True)
    has_coefficients = singular_values in ("filtered", "learned")
    assert ("second.kernel.theta" in measures["coefficients"]) == has_coefficients
