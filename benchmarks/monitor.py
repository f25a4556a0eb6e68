"""The spectral monitor: its share of a training run, by the apps' own command lines."""

import logging
import statistics
import tempfile
import warnings
from typing import Any

import attention_sequence
import attention_vision
from experiment_kit.app import AppSpec
from experiment_kit.app_cli import AppCLI
from experiment_kit.training.spectral_monitor import SpectralMonitor
from lightning.pytorch import Callback, LightningModule, Trainer
from measure import select_clock
from rich.table import Table

PERIOD = SpectralMonitor().every_n_steps
STEPS, EVERY = 44, 2  # 20 measurements before the last, two of them with figures
RUNS: dict[str, tuple[AppSpec, tuple[str, ...]]] = {
    "vision, digits, DeiT-Ti + GFSA, batch 32": (
        attention_vision.APP,
        ("backbone/deit_tiny", "data/digits", "profile/smoke", "method/gfsa"),
    ),
    "sequence, JapaneseVowels, UEA encoder + GFSA, batch 16": (
        attention_sequence.APP,
        ("backbone/uea", "data/japanese_vowels", "method/gfsa"),
    ),
}


class StepTimer(Callback):
    """Time each training step, and each measurement by its kind; the first callback of a run."""

    def __init__(self, monitor: SpectralMonitor, device: str) -> None:
        self.monitor, self.clock, self.measured = monitor, select_clock(device), 0.0
        self.steps: list[float] = []
        self.measurements: dict[bool, list[float]] = {False: [], True: []}

    def on_train_batch_start(self, *_: Any) -> None:
        self._keep_measurement()
        self.began = self.clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.ended = self.clock()
        self.steps.append(self.ended - self.began)

    def _keep_measurement(self) -> None:
        if self.monitor.untimed_seconds > self.measured:
            self.measured = self.monitor.untimed_seconds
            self.measurements[self.monitor.newest["figures"]].append(self.clock() - self.ended)


def time_run(app: AppSpec, overlays: tuple[str, ...], device: str, quick: bool) -> StepTimer:
    """Train a few steps with a measurement after each other step, without checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        configs = [part for name in ("base", *overlays) for part in ("-c", name)]
        accelerator = "gpu" if device == "cuda" else device
        options = {"accelerator": accelerator, "max_steps": 3 if quick else STEPS}
        options |= {"max_epochs": -1, "limit_val_batches": 0, "enable_progress_bar": "false"}
        given = [f"--trainer.{key}={value}" for key, value in options.items()]
        cli = AppCLI(
            app,
            [
                "fit",
                *configs,
                *given,
                f"--run.folder={folder}",
                f"--spectral.every_n_steps={EVERY}",
            ],
        )
        cli.build_all()
        callbacks: Any = cli.trainer.callbacks
        monitor = next(c for c in callbacks if isinstance(c, SpectralMonitor))
        timer = StepTimer(monitor, device)
        callbacks.insert(0, timer)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    return timer


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure steps and measurements in turn, in one run, and their ratio at the default period.

    Times are the best of the run, of CPU time on a CPU, as other load changes them least.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    table = Table(
        *("training", "step ms", "measurement ms", "every tenth ms"),
        *("seconds / without (aim <= 1.02)", "noise of a step"),
        title=f"Spectral monitor, a measurement each {PERIOD} steps",
    )
    for name, (app, overlays) in RUNS.items():
        timer = time_run(app, overlays, device, quick)
        step, light = min(timer.steps), min(timer.measurements[False])
        full = min(timer.measurements[True] or [light])
        ratio = 1 + (9 * light + full) / (10 * PERIOD * step)
        table.add_row(
            *(name, *(f"{1000 * seconds:.0f}" for seconds in (step, light, full))),
            f"{ratio:.3f} {'met' if ratio <= 1.02 else 'missed'}",
            f"{statistics.median(timer.steps) / step - 1:.0%}",
        )
    return [table]
