"""Callbacks and logger of every run, and a user's callbacks that would change what it reports."""

import hashlib
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves

from experiment_kit.errors import UserError
from experiment_kit.run import Run
from experiment_kit.run_files import parse_step
from experiment_kit.training import checkpoints
from experiment_kit.training import lightning_patches as patches
from experiment_kit.training.lightning_patches import State

_REFUSED = {
    StochasticWeightAveraging: "it averages after the last validation, so that nothing chooses or"
    " tests the average: take WeightAveraging or EMAWeightAveraging",
    BatchSizeFinder: "its batch size would be in no config: give data.init_args.batch_size",
    LearningRateFinder: "its rate would be in no config: give model.optimizer.init_args.lr",
    GradientAccumulationScheduler: "the schedule of rates would not know its number of steps: give"
    " trainer.accumulate_grad_batches",
    ModelPruning: "the tested weights would not be those that were validated: prune best.ckpt",
    SpikeDetection: "Lightning cannot load its state, so that a stopped run would not resume",
}


class StepSeed(Callback):
    """Reseed torch, numpy and random before every training step, by (seed, step, rank).

    Dropout and augmentation then do not depend on what ran before: a resumed run draws the same
    numbers as an uninterrupted one, and monitors may draw freely.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Seed the order of a loader of the user's own, which is drawn before the first batch."""
        self.on_train_batch_start(trainer)
        own = [getattr(x, "generator", None) for x in tree_leaves(trainer.train_dataloader)]
        if trainer.fit_loop.is_resuming and not any(own):  # the iterator was made before the seed
            iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_start(self, trainer: Trainer, *batch: Any) -> None:
        """Seed by the number of batches of all epochs so far."""
        key = f"{self.seed} {trainer.fit_loop.epoch_loop.total_batch_idx} {trainer.global_rank}"
        key += " order" * (not batch)  # not the seed of the last batch
        # a hash, so that neighboring steps and seeds share no draws
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 -- timm's Mixup draws from numpy's global generator
        random.seed(seed)


class FiniteSteps(Callback):
    """Stop before a step with a nan or infinite loss or gradient; name it, and what is saved.

    Where a scaler of float16 skips such steps, it may.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.losses: list[Tensor] = []  # since the last step, by batch

    def on_before_backward(self, trainer: Trainer, module: Any, loss: Tensor) -> None:
        """Keep the loss."""
        self.losses.append(loss.detach())

    def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Any) -> None:
        """Stop before the gradient spreads into the weights."""
        found = (w.grad for group in optimizer.param_groups for w in group["params"])
        norm = get_total_norm([checkpoints.get_local(grad) for grad in found if grad is not None])
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        total = sum(self.losses, torch.zeros_like(norm) if is_scaled else norm)
        # if one rank stops, all do
        if trainer.strategy.reduce_boolean_decision(not math.isfinite(total), all=False):
            lost = [f"the training loss is {x.item()}" for x in self.losses if not x.isfinite()]
            grads = {name: w.grad for name, w in module.named_parameters() if w.grad is not None}
            lost_in = checkpoints.find_nonfinite(grads) or "a weight"
            cause = f"the gradient of {lost_in} is nan or infinite"
            raise UserError(
                f"{[*lost, cause][0]} at step {trainer.global_step} (epoch "
                f"{trainer.current_epoch}, batch {trainer.fit_loop.epoch_loop.batch_idx}): lower "
                "the learning rate, clip the gradient or look at that batch; "
                + checkpoints.describe_restart(self.run)
            )
        self.losses = []


class FirstEpochsValidation(Callback):
    """Validate the untrained network and after the first epoch too, as mvts and its users do."""

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Validate before the first step; a run that resumes in the first epoch is past that."""
        self.every_n_epochs = trainer.check_val_every_n_epoch
        if trainer.global_step == 0:
            patches.validate_untrained(trainer)
        if trainer.current_epoch == 0:
            trainer.check_val_every_n_epoch = 1

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Go on with the validations of the trainer after the first epoch."""
        if trainer.current_epoch > 0:
            trainer.check_val_every_n_epoch = self.every_n_epochs


class EpochTimer(Callback):
    """Time training epochs and the newest test pass, in seconds.

    The time of an epoch includes loading, but no validation and no `untimed_seconds` of other
    callbacks. It is the sum over the processes that trained the epoch, up to their last checkpoint.
    """

    def __init__(self) -> None:
        self.seconds, self.epochs = 0.0, 0
        self.began: float | None = None  # None while the clock is stopped
        self.test: float | None = None

    def collect_metrics(self) -> dict[str, float]:
        """Return `time/epoch`, the mean over epochs, and `time/test`, if they were timed."""
        found = {"time/epoch": self.seconds / max(1, self.epochs), "time/test": self.test}
        return {name: seconds for name, seconds in found.items() if seconds}

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Add the time so far."""
        checkpoint["timer"] = {"seconds": self._count_seconds(trainer), "epochs": self.epochs}

    def on_load_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Continue the time."""
        vars(self).update(checkpoint.get("timer", {}))

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Start the clock if it is stopped."""
        if self.began is None:
            self.began = _read_clock(trainer)

    # after a validation within the epoch, and in a resumed epoch
    on_train_batch_start = on_train_epoch_start  # type: ignore[assignment]

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Stop the clock."""
        self.seconds, self.began = self._count_seconds(trainer), None

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count the epoch."""
        self.on_validation_start(trainer)
        self.epochs += 1

    def on_test_start(self, *_: Any) -> None:
        """Start a test pass."""
        self.test_began = time.perf_counter()

    def on_test_end(self, *_: Any) -> None:
        """Keep the test pass; its metrics have been computed, so that no kernel is running."""
        self.test = time.perf_counter() - self.test_began

    def _count_seconds(self, trainer: Trainer) -> float:
        return self.seconds + (0.0 if self.began is None else _read_clock(trainer) - self.began)


def _read_clock(trainer: Any) -> float:
    untimed = sum(getattr(callback, "untimed_seconds", 0.0) for callback in trainer.callbacks)
    return time.perf_counter() - untimed


class ProgressFile(Callback):
    """Write how far training is into a file of the run's folder, which the launcher shows.

    It is written at most once a second. A full disk is no reason to end.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, 0.0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the share of the steps that is done, and the epoch."""
        if trainer.is_global_zero and time.monotonic() - self.written > 1:
            self.written = time.monotonic()
            share = trainer.global_step / trainer.estimated_stepping_batches
            last = f"/{trainer.max_epochs}" * ((trainer.max_epochs or 0) > 0)
            with suppress(OSError):
                self.path.write_text(f"{share:.3f} epoch {trainer.current_epoch + 1}{last}")

    def teardown(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Remove the file of a run that ended."""
        if trainer.is_global_zero:
            self.path.unlink(missing_ok=True)


class RunLogger(TensorBoardLogger):
    """Log curves into the run's folder; test scores are no curves, and are in HPARAMS alone.

    What was logged after the step of the checkpoint `resume` is hidden.
    """

    def __init__(self, run: Run, resume: str | None) -> None:
        path, is_new = Path(resume or ""), not any(run.folder.glob("events.out.*"))
        step = parse_step(path) if path.parent == run.checkpoint_folder else 0
        options: Any = {"default_hp_metric": False, "purge_step": None if is_new else step}
        super().__init__(run.folder, name="", version="", **options)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log curves; the epoch, which Lightning adds, is left out: it would be the first chart."""
        curves = {name: x for name, x in metrics.items() if not name.startswith(("test/", "epoch"))}
        super().log_metrics(curves, step)

    def save(self) -> None:
        """Write what is in memory; Lightning's own adds an hparams.yaml."""
        self.experiment.flush()


def check_callbacks(callbacks: Sequence[Any], model: Any) -> None:
    """Refuse callbacks whose effect would not be in the result, and two that share a state."""
    for callback in callbacks:
        reasons = [reason for kind, reason in _REFUSED.items() if isinstance(callback, kind)]
        if re.match(r"\{step|step=|best$", str(getattr(callback, "filename", ""))):
            reasons.append("its files would be taken for those of the run: give another filename")
        if isinstance(callback, BackboneFinetuning) and not hasattr(model, "backbone"):
            reasons.append(f"{type(model).__name__} has no backbone")
        for reason in reasons:
            name = type(callback).__name__
            raise UserError(f"trainer.callbacks: {name} is not supported: {reason}")
    keys = [c.state_key for c in callbacks if is_overridden("state_dict", c)]
    if double := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"trainer.callbacks: two of them watch the same: {double[0]}")


def default_callbacks(
    run: Run,
    seed: int,
    monitor: str,
    options: checkpoints.CheckpointOptions,
    handler: checkpoints.PreemptionHandler,
) -> list[Callback]:
    """Return the callbacks of a run; checkpoints come last, so that they save the others' state."""
    best = patches.BestCheckpoint(run.checkpoint_folder, monitor)
    newest = checkpoints.ResumableCheckpoint(run, options, handler)
    corrections = [patches.RestoreLoops(), patches.UnfuseForClipping()]
    observers = [FiniteSteps(run), EpochTimer(), ProgressFile(run.folder / "progress.txt")]
    return [StepSeed(seed), *corrections, *observers, best, newest]
