"""What every training run is given: seeds, guards, instruments, checkpoints, a logger."""

from pathlib import Path

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from experiment_kit.callbacks import (
    Clippable,
    FiniteLoss,
    GracefulStop,
    MovableCheckpoint,
    Reposition,
    StepSeed,
    Throughput,
    Times,
)
from experiment_kit.runs import Run, checkpoint_step


def equipment(run: Run, seed: int, monitor: str) -> list[Callback]:
    """The callbacks of a run; checkpoints come last, so that they hold what the others did.

    >>> from pathlib import Path
    >>> [type(c).__name__ for c in equipment(Run(Path("r")), 0, "val/accuracy")][-2:]
    ['MovableCheckpoint', 'MovableCheckpoint']
    """
    return [
        StepSeed(seed),
        Reposition(),
        Clippable(),
        FiniteLoss(),
        Throughput(),
        Times(),
        LearningRateMonitor(),
        GracefulStop(run.checkpoint_folder),
        _best(run, monitor),
        _latest(run),
    ]


def _best(run: Run, monitor: str) -> ModelCheckpoint:
    return MovableCheckpoint(
        run.checkpoint_folder,
        filename="best",
        monitor=monitor,
        mode="max",
        save_weights_only=True,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )


def _latest(run: Run) -> ModelCheckpoint:
    """The two newest epochs: the older serves where the newer was cut short by a bad disk."""
    return MovableCheckpoint(
        run.checkpoint_folder,
        filename="{step}",
        monitor="step",
        mode="max",
        save_top_k=2,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )


def logger(run: Run, resume: str | None) -> TensorBoardLogger:
    """One TensorBoard folder a run; what lies after the step resumed from is struck out."""
    path = Path(resume or "")
    purge = checkpoint_step(path) if path.parent == run.checkpoint_folder else None
    return TensorBoardLogger(
        run.folder, name="", version="tensorboard", default_hp_metric=False, purge_step=purge
    )
