"""A run that is stopped, or killed after a checkpoint, ends as one that was not."""

import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_kit.data.loaders import build_train_loader
from experiment_kit.errors import UserError
from experiment_kit.run import Run
from experiment_kit.run_files import parse_step
from experiment_kit.training.callbacks import default_callbacks
from experiment_kit.training.checkpoints import (
    CheckpointOptions,
    Preemption,
    PreemptionHandler,
    explain_failure,
)
from experiment_kit.training.module import AttentionModule
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.kit.trainers import make_trainer

DATA = TensorDataset(torch.randn(16, 3, generator=torch.Generator().manual_seed(0)))
BATCHES = 8  # in two epochs
MEANS = "by_epoch", "by_epoch_epoch", "first"  # by Lightning, not by torchmetrics


class Record(Logger):
    """Logged values in memory; a resumed run drops what was logged from its step on."""

    name, version = "", ""

    def __init__(self) -> None:
        self.values: list[tuple[int, str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        for name, value in metrics.items():
            self.values.append((step, name, value))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class Net(LightningModule):
    """Logs by step, by epoch, in some batches alone, and by a metric; no epoch scores alike."""

    on_load_checkpoint = AttentionModule.on_load_checkpoint

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.seen = nn.Linear(3, 1), MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = self.line(batch[0] + torch.rand(())).square().mean()
        self.log("by_step", loss)
        self.log("by_epoch", loss, on_step=True, on_epoch=True)
        if batch_idx == 0:
            self.log("first", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.seen.update(loss.detach())
        self.log("metric", self.seen, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/score", -(self.line(batch[0]).mean() - self.trainer.global_step % 5).abs())

    def train_dataloader(self):
        return build_train_loader(DATA, 4, 0, self.trainer)

    def val_dataloader(self):
        return DataLoader(DATA, 8)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        plateau.best = 0.0  # no epoch is better
        return [optimizer], [{"scheduler": plateau, "monitor": "metric"}]


def call_at(at: int, call: Callable[[], None]) -> Callback:
    """Make a callback that calls a function in the n-th batch."""
    batches = count(1)
    return LambdaCallback(on_before_backward=lambda *_: next(batches) == at and call())


def fit(folder: Path, record: Record, *callbacks: Callback, every=None, **options: Any) -> Net:
    """Train in a folder, or go on from its newest checkpoint."""
    run, net = Run(folder), Net()
    with PreemptionHandler() as handler:
        given = default_callbacks(run, 0, "val/score", CheckpointOptions(None, every), handler)
        newest = run.find_newest_checkpoint()
        start = 0 if newest is None else parse_step(newest)
        record.values = [value for value in record.values if value[0] < start]
        options = {"max_epochs": 2, "log_every_n_steps": 2, "logger": record, **options}
        trainer = make_trainer(*callbacks, *given, enable_checkpointing=True, **options)
        trainer.fit(net, ckpt_path=newest, weights_only=True)
    net.metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return net


OPTIONS = {
    "each epoch": {},
    "every two epochs": {"check_val_every_n_epoch": 2},
    "within epochs": {"val_check_interval": 2},
    "beyond epochs": {"val_check_interval": 3, "check_val_every_n_epoch": None},
    "accumulated": {"accumulate_grad_batches": 3, "val_check_interval": 2},
    "by steps": {"max_steps": 6, "val_check_interval": 0.5},
    "never": {"limit_val_batches": 0},
    "in double precision": {"precision": "64-true"},
}


def read_best(folder: Path) -> Any:
    path = folder / "checkpoints" / "best.ckpt"
    if not path.exists():
        return None
    best = torch.load(path, weights_only=True)
    return best["epoch"], best["global_step"], best["state_dict"]["line.bias"].item()


def check_equal(folders: list[Path], records: list[Record], nets: list[Net], epoch: int) -> None:
    """Compare all but clocks and the running means of an interrupted epoch."""
    ends = sorted({step for step, name, _ in records[0].values if name == "metric"})
    one, two = (
        sorted(v for v in record.values if v[1] not in MEANS or v[0] != ends[epoch])
        for record in records
    )
    assert one == two
    unequal = MEANS * (ends[epoch] == ends[-1])
    mine, theirs = (
        {name: value for name, value in net.metrics.items() if not name.startswith(unequal)}
        for net in nets
    )
    assert mine == theirs
    assert "metric" in mine
    assert read_best(folders[0]) == read_best(folders[1])
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
    kept = [sorted(map(parse_step, folder.rglob("step=*"))) for folder in folders]
    assert kept[0][-1] == kept[1][-1]
    assert len(kept[1]) <= 2


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_stop_at_any_batch_changes_nothing(options, tmp_path) -> None:
    records, send_signal = [Record(), Record()], partial(os.kill, os.getpid(), signal.SIGTERM)
    whole = fit(tmp_path / "whole", records[0], **options)
    for batch in range(1, options.get("max_steps", BATCHES) + 1):
        folder, records[1] = tmp_path / str(batch), Record()
        with pytest.raises(Preemption) as end:
            fit(folder, records[1], call_at(batch, send_signal), **options)
        assert end.value.code == 75
        net = fit(folder, records[1], **options)
        check_equal([tmp_path / "whole", folder], records, [whole, net], (batch - 1) // 4)


@pytest.mark.parametrize("name", ["within epochs", "accumulated"])
def test_a_run_that_dies_goes_on_from_the_newest_of_two_checkpoints(name, tmp_path):
    records, options = [Record(), Record()], {**OPTIONS[name], "every": 1}
    whole = fit(tmp_path / "whole", records[0], **options)
    for batch in (3, 4, 6):
        folder, records[1] = tmp_path / str(batch), Record()
        with pytest.raises(ZeroDivisionError):
            fit(folder, records[1], call_at(batch, lambda: divmod(1, 0)), **options)
        newest = Run(folder).find_latest_step()
        assert newest == (batch - 1 if name == "within epochs" else {3: None, 4: 1, 6: 2}[batch])
        net = fit(folder, records[1], **options)
        check_equal([tmp_path / "whole", folder], records, [whole, net], (batch - 1) // 4)


class Spoil(Callback):
    """Make a gradient, or else a weight after the step, no number in the n-th batch."""

    def __init__(self, at: int, value: float, weight: bool = False) -> None:
        self.at, self.value, self.weight, self.batches = at, value, weight, count(1)

    def on_after_backward(self, trainer, module) -> None:
        if next(self.batches) == self.at and not self.weight:
            module.line.weight.grad[0, 1] = self.value

    def on_train_batch_end(self, trainer, module, *_: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.at and self.weight:
            module.line.weight.data[0, 1] = self.value


SPOILED = {
    "the first step": ({}, 1, 0, None),
    "within an epoch": ({}, 6, 5, 4),
    "the last before a checkpoint": ({}, 4, 3, None),
    "the last": ({}, 8, 7, 4),
    "before a validation": ({"val_check_interval": 2}, 6, 5, 4),
    "while accumulating": ({"accumulate_grad_batches": 3}, 6, 2, 2),
    "clipped": ({"gradient_clip_val": 1.0}, 7, 6, 4),
    "clipped by value": (
        {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value", "precision": "bf16-mixed"},
        *(7, 6, 4),
    ),
}


@pytest.mark.parametrize(("options", "at", "step", "newest"), SPOILED.values(), ids=SPOILED)
def test_a_gradient_that_is_no_number_is_as_a_crash(options, at, step, newest, tmp_path) -> None:
    records, folder = [Record(), Record()], tmp_path / "parts"
    with pytest.raises(UserError, match=f"gradient of line.weight .* at step {step} ") as error:
        fit(folder, records[1], Spoil(at, float("nan")), **options)
    known = "no checkpoint yet" if newest is None else f"goes on from step={newest}.ckpt"
    assert known in str(error.value)
    assert Run(folder).find_latest_step() == newest
    whole = fit(tmp_path / "whole", records[0], **options)
    again = fit(folder, records[1], **options)
    check_equal([tmp_path / "whole", folder], records, [whole, again], (at - 1) // 4)


@pytest.mark.parametrize("at", [4, 8])
def test_weights_that_are_no_numbers_are_not_saved(at, tmp_path) -> None:
    with pytest.raises(UserError, match=f"line.weight is nan or infinite after step {at}, which"):
        fit(tmp_path, Record(), Spoil(at, float("inf"), weight=True))
    assert Run(tmp_path).find_latest_step() == (None if at == 4 else 4)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_a_signal_outside_of_training_ends_at_once_with_a_sentence(name, capsys) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with pytest.raises(Preemption) as end, PreemptionHandler():
        signal.raise_signal(number)
    assert end.value.code == 75
    assert capsys.readouterr().err == "stopped: the same command resumes\n"
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_the_process_at_once_and_an_ignored_signal_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with PreemptionHandler() as handler:
        handler.deferred = True
        os.kill(os.getpid(), signal.SIGINT)
        assert handler.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN


@pytest.mark.parametrize(("message", "requested", "error", "shown"), [
    ("DataLoader worker (pid 1) is killed by signal: Killed.", False, UserError, "was killed, may"),
    ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer", False, UserError, "was killed"),
    ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer", True, Preemption, None),
    ("a bug", True, RuntimeError, "a bug"),
])  # fmt: skip
def test_the_death_of_another_process_is_one_sentence(message, requested, error, shown) -> None:
    handler = PreemptionHandler()
    handler.requested = requested
    with pytest.raises(error, match=shown), explain_failure(handler, None):
        raise RuntimeError(message)
