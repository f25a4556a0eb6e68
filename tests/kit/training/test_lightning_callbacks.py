"""Lightning's callbacks and a user's own in a run: what is tested is what was validated."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from experiment_kit.cli import run_app
from experiment_kit.run import Run
from lightning.pytorch import Callback, callbacks

from tests.apps.contract import find_run
from tests.kit import tiny

PROBE = torch.randn(2, tiny.LENGTH, tiny.DIM, generator=torch.Generator().manual_seed(1))
SCORES = [0.1, 0.9, 0.2]  # the second of three epochs is the best


class Probed(tiny.Classifier):
    """Notes its output in each validation and in the test, and stops at a batch if asked."""

    outputs: ClassVar[dict[object, float]] = {}
    stop_at: int | None = None

    def note_output(self, place) -> None:
        self.outputs[place] = self.model(PROBE).double().square().sum().item()

    def training_step(self, batch, batch_idx):
        if self.trainer.fit_loop.epoch_loop.total_batch_idx == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.note_output(self.current_epoch)
        self.log("val/accuracy", SCORES[self.current_epoch])

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.note_output("test")
        super().test_step(batch, batch_idx, dataloader_idx)


APP = replace(tiny.APP, model=Probed, score_last=False)


class Swapping(Callback):
    """Validates with half the weights."""

    @torch.no_grad()
    def on_validation_start(self, trainer, module, factor=0.5) -> None:
        for weight in module.parameters():
            weight.mul_(factor)

    def on_validation_end(self, trainer, module) -> None:
        self.on_validation_start(trainer, module, factor=2.0)


class Writing(Callback):
    """Adds to the checkpoint."""

    def on_save_checkpoint(self, trainer, module, checkpoint) -> None:
        checkpoint["mine"] = trainer.global_step


def name_callback(kind: type | str, **arguments: object) -> dict[str, object]:
    name = kind if isinstance(kind, str) else kind.__name__
    home = "lightning.pytorch.callbacks" if isinstance(kind, str) else __name__
    return {"class_path": f"{home}.{name}", "init_args": arguments}


SCORE = {"monitor": "val/accuracy", "mode": "max"}
EMA = partial(name_callback, "EMAWeightAveraging", decay=0.5)
WORKING = {
    "EMA": [EMA()],
    "EMA from the second epoch on": [EMA(update_starting_at_step=5)],
    "average": [name_callback("WeightAveraging")],
    "a checkpoint of the same score": [name_callback("ModelCheckpoint", **SCORE)],
    "two early stoppings": [
        name_callback("EarlyStopping", **SCORE, patience=5),
        name_callback("EarlyStopping", monitor="train/loss", patience=9),
    ],
    "an exception's checkpoint": [name_callback("OnExceptionCheckpoint", dirpath="{folder}")],
    "weights exchanged while validating": [name_callback(Swapping)],
    "EMA, and weights exchanged": [EMA(), name_callback(Swapping)],
}
REFUSED = {
    "BatchSizeFinder": ([name_callback("BatchSizeFinder")], "give data.init_args.batch_size"),
    "LearningRateFinder": ([name_callback("LearningRateFinder")], "model.optimizer.init_args.lr"),
    "batches": ([name_callback("GradientAccumulationScheduler", scheduling={1: 2})], "accumulate_"),
    "SpikeDetection": ([name_callback("SpikeDetection")], "cannot load its state"),
    "SWA": ([name_callback("StochasticWeightAveraging", swa_lrs=0.1)], "take WeightAveraging or"),
    "files of the run": ([name_callback("ModelCheckpoint", filename="best")], "another filename"),
    "two of one metric": ([name_callback("EarlyStopping", **SCORE)] * 2, "watch the same"),
    "pruning": ([name_callback("ModelPruning", pruning_fn="l1_unstructured")], "prune best.ckpt"),
    "no backbone": ([name_callback("BackboneFinetuning")], "Probed has no backbone"),
}


HARMLESS = {  # no weights, and no choice of them
    *("BaseFinetuning", "BasePredictionWriter", "Callback", "Checkpoint"),
    *("DeviceStatsMonitor", "LambdaCallback", "LearningRateMonitor", "ModelSummary", "ProgressBar"),
    *("RichModelSummary", "RichProgressBar", "TQDMProgressBar", "ThroughputMonitor", "Timer"),
}


def test_every_callback_of_lightning_is_tried_or_refused_or_harmless() -> None:
    lists = [*WORKING.values(), *(given for given, _ in REFUSED.values())]
    tried = {one["class_path"].rpartition(".")[2] for given in lists for one in given}
    assert {*callbacks.__all__} - tried == HARMLESS


def fit(folder: Path, given: list[dict[str, object]], stop_at: int | None = None) -> Run:
    Probed.outputs, Probed.stop_at = {}, stop_at
    listed = json.dumps(given).replace("{folder}", str(folder.parent))
    options = ["--trainer.max_epochs=3", f"--trainer.callbacks={listed}"]
    run_app(APP, ["fit", *tiny.arguments(folder, *options)])
    return find_run(folder)


def read_end(run: Run) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the scores of a run, but no times, and its last weights."""
    metrics = run.read_result()["metrics"].items()
    newest = torch.load(run.find_newest_checkpoint(), weights_only=True)["state_dict"]
    return {name: x for name, x in metrics if not name.startswith("time/")}, newest


@pytest.mark.parametrize("given", WORKING.values(), ids=WORKING)
def test_the_tested_weights_are_those_that_were_validated(given, tmp_path) -> None:
    """Also if the run is stopped within an epoch and resumed, which changes nothing."""
    scores, weights = read_end(fit(tmp_path / "whole", [*given, name_callback(Writing)]))
    assert Probed.outputs["test"] == Probed.outputs[1]
    (best,) = tmp_path.rglob("best.ckpt")
    saved = torch.load(best, weights_only=True)
    assert (saved["epoch"], saved["mine"]) == (1, 8)
    with pytest.raises(SystemExit):
        fit(tmp_path / "parts", [*given, name_callback(Writing)], stop_at=9)
    again, same = read_end(fit(tmp_path / "parts", [*given, name_callback(Writing)]))
    assert again == scores
    assert all(torch.equal(same[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_no_result_would_show_is_refused(given, sentence, tmp_path, read_error) -> None:
    error = read_error(fit, tmp_path, given)
    assert error.startswith("error: trainer.callbacks: ")
    assert sentence in error


@pytest.mark.parametrize(("option", "warns"), [
    ("limit_val_batches=0", True), ("check_val_every_n_epoch=4", True), ("max_steps=3", True),
    ("max_steps=4", False), ("check_val_every_n_epoch=3", False),
])  # fmt: skip
def test_a_run_that_never_validates_says_so(option, warns, tmp_path, capsys) -> None:
    args = tiny.arguments(tmp_path, "--trainer.max_epochs=3", f"--trainer.{option}")
    run_app(APP, ["fit", *args])
    assert ("no epoch is validated: the weights at" in capsys.readouterr().err) == warns
    assert (find_run(tmp_path).read_result()["best_epoch"] is None) == warns
