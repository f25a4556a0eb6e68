"""Checkpoints that a run resumes from, and signals, which end it with one."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from jsonargparse.typing import PositiveFloat, PositiveInt
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from experiment_kit.errors import EXIT_STATUS, UserError
from experiment_kit.run import Run
from experiment_kit.training import lightning_patches as patches
from experiment_kit.training.lightning_patches import State

_SIGNALS = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP


@dataclass(frozen=True)
class CheckpointOptions:
    """When to save within an epoch, besides its end; null for never.

    Args:
        every_n_minutes: Minutes between two checkpoints.
        every_n_steps: Steps between two checkpoints.
    """

    every_n_minutes: PositiveFloat | None = 10.0
    every_n_steps: PositiveInt | None = None


class Preemption(SystemExit):
    """The end of a run that a signal asked for."""

    def __init__(self, place: str = "") -> None:
        super().__init__(EXIT_STATUS)
        self.place = place


class PreemptionHandler:
    """End the run on SIGTERM, SIGUSR1, SIGINT or SIGHUP, with a sentence and exit status 75.

    While `deferred`, a signal only sets `requested`. A second SIGINT ends the process at once.
    Signals that are ignored, as SIGHUP is under nohup, stay ignored.
    """

    def __init__(self) -> None:
        self.requested = self.deferred = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "PreemptionHandler":
        self.process = os.getpid()
        found = {number: signal.getsignal(number) for number in _SIGNALS}
        self.previous = {k: v for k, v in found.items() if v is not signal.SIG_IGN}
        self.register_handlers()
        return self

    def register_handlers(self) -> None:
        """Handle the signals, also after Lightning has set handlers of its own."""
        for number in self.previous:
            signal.signal(number, self._request_stop)

    def __exit__(self, _: Any, error: BaseException | None, __: TracebackType | None) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if isinstance(error, Preemption) and patches.is_first_process():
            print(f"stopped{error.place}: the same command resumes", file=sys.stderr, flush=True)

    def _request_stop(self, *_: Any) -> None:
        if os.getpid() != self.process:  # a worker of a loader, which Ctrl-C reaches too
            return
        if signal.SIGINT in self.previous:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        ends_now = not (self.requested or self.deferred)
        self.requested = True
        if ends_now:
            raise Preemption


@contextmanager
def explain_failure(preemption: PreemptionHandler, checkpoint: str | None) -> Iterator[None]:
    """Convert errors that torch and Lightning raise for mistakes and kills into one sentence."""
    try:
        yield
    except (RuntimeError, EOFError, ConnectionError) as error:
        reason = " ".join(str(error).split())
        is_dead = re.search("DataLoader worker|gloo|NCCL", reason)
        is_pipe = not isinstance(error, RuntimeError)  # to a worker that the same signal ended
        if preemption.requested and (is_dead or is_pipe):
            raise Preemption from error
        if is_dead:
            failure = UserError(
                "another process of this run was killed, maybe for want of memory, of which fewer"
                " data.num_workers take less: start again, and the run resumes"
            )
            failure.code = 1  # a second try may succeed
            raise failure from error
        if "conditioned on metric" in reason:  # EarlyStopping's
            raise UserError(f"trainer.callbacks: {reason.partition(' Pass in')[0]}") from error
        if "loading state_dict" in reason:
            raise UserError(f"{checkpoint} is of another model: {reason[:200]} ...") from error
        raise


def find_metrics(module: LightningModule) -> list[tuple[str, Metric]]:
    """Return the metrics of a module by name."""
    return [(name, part) for name, part in module.named_modules() if isinstance(part, Metric)]


def get_local(x: Tensor) -> Tensor:
    """Return the part of a tensor that is on this device."""
    return x.to_local() if isinstance(x, DTensor) else x


def find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a nan or an infinity."""
    return next((name for name, x in tensors.items() if not get_local(x).isfinite().all()), None)


def describe_restart(run: Run) -> str:
    """Say from which checkpoint the same command goes on."""
    if (newest := run.find_latest_step()) is None:
        return "there is no checkpoint yet, and the same command starts anew"
    return f"the same command goes on from step={newest}.ckpt, from before it"


class ResumableCheckpoint(Checkpoint):
    """Save `step=N.ckpt` at the end of an epoch and within it, and keep the two newest.

    They are saved between two batches, after the last one is validated and logged: a resumed run
    repeats nothing. It only loses the running means of the interrupted epoch; metrics of
    torchmetrics continue.

    After a signal to any rank, all ranks end at the same batch.
    """

    def __init__(self, run: Run, options: CheckpointOptions, handler: PreemptionHandler) -> None:
        self.run, self.options, self.handler = run, options, handler
        self.saved_step, self.saved_at = 0, 0.0
        self.untimed_seconds = 0.0  # in all checkpoints; EpochTimer subtracts them
        self.loaded: State = {}
        self.is_validated = False  # since the last batch

    def on_load_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Keep what Lightning does not restore."""
        self.loaded = checkpoint.get("resumable", {})
        self.on_fit_start(trainer)  # with sharded weights it has been called

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Restore the newest metrics, also of training that has ended."""
        trainer.callback_metrics.update(self.loaded.get("newest", {}))

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Add what Lightning does not save; refuse weights that are no numbers."""
        weights = dict(module.named_parameters())
        written = {f"the saved {k}": x for k, x in checkpoint["state_dict"].items() if k in weights}
        name = find_nonfinite({**weights, **written})
        if trainer.strategy.reduce_boolean_decision(name is not None, all=False):
            raise UserError(
                f"{name or 'a weight'} is nan or infinite after step {trainer.global_step}, which "
                "is not saved: lower the learning rate, or look at what changes the weights; "
                + describe_restart(self.run)
            )
        patches.rewind_loops(checkpoint, self.is_validated)
        found = {name: metric.metric_state for name, metric in find_metrics(module)}
        states: list[Any] = [move_data_to_device(found, torch.device("cpu"))]
        if trainer.world_size > 1:
            states *= trainer.world_size
            torch.distributed.all_gather_object(states, states[0])
        newest = {name: value.cpu() for name, value in trainer.callback_metrics.items()}
        state = {"newest": newest, "ranks": states, "stopped": trainer.should_stop}
        checkpoint["resumable"] = state

    def on_train_start(self, trainer: Any, module: LightningModule) -> None:
        """Restore the states of metrics; defer signals."""
        if ranks := self.loaded.get("ranks"):
            saved = ranks[trainer.global_rank % len(ranks)]
            for name, metric in find_metrics(module):
                vars(metric).update(move_data_to_device(saved.get(name, {}), metric.device))
        trainer.should_stop = trainer.should_stop or self.loaded.get("stopped", False)
        self.saved_step, self.saved_at = trainer.global_step, time.monotonic()
        self.handler.deferred = True
        self.handler.register_handlers()

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Save the end of the epoch before."""
        self._save_checkpoint(trainer)
        self._exit_if_requested(trainer)

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, place: int) -> None:
        """Save where it is due or requested."""
        if place % trainer.accumulate_grad_batches:
            return
        minutes, steps = self.options.every_n_minutes, self.options.every_n_steps
        by_time = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        is_due = by_time or (steps is not None and trainer.global_step % steps == 0)
        if trainer.strategy.reduce_boolean_decision(self.handler.requested or is_due, all=False):
            self._save_checkpoint(trainer)
            self._exit_if_requested(trainer)

    def on_train_batch_end(self, *_: Any) -> None:
        """Wait for a validation."""
        self.is_validated = False

    def on_validation_end(self, *_: Any) -> None:
        """Note that the last batch is validated."""
        self.is_validated = True

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Save the end of training."""
        self._save_checkpoint(trainer)
        self.handler.deferred = False
        self._exit_if_requested(trainer)

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        """End the processes that this one has started, which may wait for it."""
        launcher: Any = trainer.strategy.launcher
        if isinstance(exception, Preemption) and launcher is not None:
            launcher.kill(signal.SIGTERM)
            launcher.procs.clear()  # else Lightning would kill this process as they end

    def _save_checkpoint(self, trainer: Any) -> None:
        step = trainer.global_step
        if step == self.saved_step or trainer.fast_dev_run:
            return
        began = time.monotonic()
        for logger in trainer.loggers:  # a killed process would lose what it has not written
            logger.save()
        trainer.save_checkpoint(self.run.checkpoint_folder / f"step={step}.ckpt")
        if trainer.is_global_zero:
            self.run.remove_old_checkpoints()
        self.saved_step, self.saved_at = step, time.monotonic()
        self.untimed_seconds += self.saved_at - began

    def _exit_if_requested(self, trainer: Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(self.handler.requested, all=False):
            trainer.strategy.barrier()
            raise Preemption(f" at step {trainer.global_step}")
