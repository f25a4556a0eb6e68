"""A budget: how the rate and the batch follow it, where it ends a run, and what a resume keeps."""

from types import SimpleNamespace

import pytest
import torch
from attention_nlp import budget
from attention_nlp.budget import Budget, batches_per_step, triangle_factor
from experiment_kit.data.loaders import build_train_loader
from experiment_kit.errors import UserError
from experiment_kit.run import Run
from experiment_kit.training import checkpoints
from experiment_kit.training.checkpoints import CheckpointOptions, ResumableCheckpoint
from experiment_kit.training.optim import ConstantSchedule
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn

from tests.kit.trainers import make_trainer

PAIRS = [(torch.randn(3), torch.randn(1)) for _ in range(42)]


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 2) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return build_train_loader(PAIRS, self.batch_size, 0, self.trainer, drop_last=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(PAIRS[:4], 2)


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.line = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return (self.line(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [ConstantSchedule()(optimizer, 10, 10)]


def record_steps(steps: list[tuple[int, float]]) -> Callback:
    """Keep the number of batches and the learning rate of each step."""

    def record(trainer, pl_module, optimizer) -> None:
        steps.append((int(trainer.accumulate_grad_batches), optimizer.param_groups[0]["lr"]))

    return LambdaCallback(on_before_optimizer_step=record)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 0.99))
def test_the_rate_is_two_straight_lines(p: float, start: float, peak: float) -> None:
    up, down = start + (1 - start) * p / peak, 1 - (p - peak) / (1 - peak)
    assert triangle_factor(p, start, peak) == pytest.approx(up if p <= peak else down, abs=1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 200), st.floats(0, 1))
def test_the_batch_never_shrinks_and_is_full_at_the_ramp(p, q, full, ramp) -> None:
    early, late = sorted([p, q])
    assert 1 <= batches_per_step(early, full, ramp) <= batches_per_step(late, full, ramp) <= full
    assert batches_per_step(ramp, full, ramp) == full


def test_steps_are_those_of_a_loop_that_is_written_down() -> None:
    """Epochs of 21 batches: the gradient of a step is the mean over its batches, its last too."""
    found, module, budget = [], Line(), Budget(None, batch=8, ramp=0.5)
    make_trainer(budget, record_steps(found), max_epochs=2).fit(module, Data())
    plain, done, steps = Line(), 0, []
    loader, order = build_train_loader(PAIRS, 2, 0, None, drop_last=True), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        order.append(list(loader))
    while done < 42:
        p, (epoch, at) = done / 42, divmod(done, 21)
        size = min(batches_per_step(p, 4, 0.5), 21 - at)
        some = order[epoch][at : at + size]
        loss = torch.stack([plain.training_step(batch, 0) for batch in some]).mean()
        gradients = torch.autograd.grad(loss, list(plain.parameters()))
        steps.append((size, 0.5 * triangle_factor(p, 0.25, 0.75)))
        with torch.no_grad():
            for weight, gradient in zip(plain.parameters(), gradients, strict=True):
                weight -= steps[-1][1] * gradient
        done += size
    assert found == [(size, pytest.approx(rate)) for size, rate in steps]
    assert {size for size, _ in steps} >= {1, 2, 3, 4}
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("at", [(0, 3), (0, 20), (1, 0), (1, 9)])
def test_a_run_that_was_interrupted_ends_as_if_it_was_not(at, tmp_path) -> None:
    def fit(module: Line, *callbacks: Callback, **options) -> None:
        given = (Budget(None, batch=8, ramp=0.5), *callbacks)
        trainer = make_trainer(*given, max_epochs=2, enable_checkpointing=bool(callbacks))
        trainer.fit(module, Data(), **options)

    def request_stop(trainer, pl_module, batch, batch_idx) -> None:  # also within a step
        handler.requested |= (trainer.current_epoch, batch_idx) == at

    whole, again, handler = Line(), Line(), checkpoints.PreemptionHandler()
    saving = ResumableCheckpoint(Run(tmp_path), CheckpointOptions(), handler)
    fit(whole)
    with pytest.raises(SystemExit):
        fit(Line(), LambdaCallback(on_train_batch_start=request_stop), saving)
    fit(again, ckpt_path=Run(tmp_path).find_newest_checkpoint(), weights_only=True)
    assert all(map(torch.equal, again.parameters(), whole.parameters()))


def test_the_clock_ends_a_run_and_outlives_a_resume(monkeypatch) -> None:
    seconds, steps, later = [], [], []
    clock = LambdaCallback(on_train_batch_start=lambda *_: seconds.append(1))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(len(seconds))))
    counted = Budget("30s", batch=4, ramp=0.0)
    run = make_trainer(clock, counted, record_steps(steps), max_epochs=1000)
    run.fit(Line(), Data())
    assert sum(size for size, _ in steps) == 31  # the end of a step of 2
    assert "val/loss" in run.callback_metrics
    resumed = Budget("40s", batch=4, ramp=0.0)
    resumed.load_state_dict(counted.state_dict())
    make_trainer(clock, resumed, record_steps(later), max_epochs=1000).fit(Line(), Data())
    assert sum(size for size, _ in later) == 10


def test_what_does_not_fit_is_reported() -> None:
    with pytest.raises(UserError, match=r"batch 7 is not a multiple of 2, data.batch_size"):
        make_trainer(Budget(None, batch=7), max_epochs=1).fit(Line(), Data())
    trainer = make_trainer(Budget(None, batch=8), max_epochs=1, accumulate_grad_batches=2)
    with pytest.raises(UserError, match="is set by Budget: leave it at 1"):
        trainer.fit(Line(), Data())
