"""Our training stack against a loop written by hand: same model, optimizer, clipping, batches."""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from attention_sequence.data import UEA
from attention_sequence.module import SequenceClassifier
from experiment_kit.run import Run
from experiment_kit.training.callbacks import RunLogger, default_callbacks
from experiment_kit.training.checkpoints import CheckpointOptions, PreemptionHandler
from experiment_kit.training.lightning_patches import AtomicCheckpointIO
from experiment_kit.training.spectral_monitor import SpectralMonitor
from lightning.pytorch import Callback, LightningModule, Trainer
from measure import compare_with_aim, format_noise, interleave_runs
from rich.table import Table
from torch.utils.data import DataLoader, Subset

# the 270 samples make 17 batches: three epochs are 51 steps, so that the monitor, which measures
# every 50 steps, measures once
EPOCHS, RATE, CLIP = 3, 1e-3, 4.0
Callbacks = Callable[[Run], list[Callback]]


class Stopwatch(Callback):
    """Measure the seconds from the first batch to the end of the last epoch."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.perf_counter() - self.began


def build_model(data: UEA, quick: bool) -> SequenceClassifier:
    """Build the encoder at the papers' size."""
    torch.manual_seed(0)
    size = {"dim": 64, "ffn_dim": 128} if quick else {}
    return SequenceClassifier(
        data.num_features,
        data.num_classes,
        data.max_length,
        optimizer=partial(torch.optim.RAdam, lr=RATE),
        **size,
    )


def train_by_hand(data: UEA, device: str, quick: bool) -> float:
    """Train with a loop as a paper's repository would write it."""
    net = build_model(data, quick).model.to(device).train()
    optimizer = torch.optim.RAdam(net.parameters(), lr=RATE)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in DataLoader(data.splits["train"], batch_size=16, shuffle=True):
            x, mask, label = (t.to(device) for t in batch)
            loss = F.cross_entropy(net(x, mask), label)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
    loss.item()  # waits for the device
    return time.perf_counter() - began


def train_by_lightning(data: UEA, device: str, quick: bool, callbacks: Callbacks) -> float:
    """Train with Lightning, the settings of configs/base.yaml and these callbacks."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        trainer = Trainer(
            accelerator="gpu" if device == "cuda" else device,
            devices=1,
            max_epochs=EPOCHS,
            gradient_clip_val=CLIP,
            log_every_n_steps=5,
            limit_val_batches=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=bool(callbacks(run)),
            default_root_dir=folder,
            plugins=[AtomicCheckpointIO()],
            logger=RunLogger(run, None),
            callbacks=[watch, *callbacks(run)],
        )
        trainer.fit(build_model(data, quick), datamodule=data)
    return watch.seconds


def list_callbacks(run: Run) -> list[Callback]:
    made = CheckpointOptions(), PreemptionHandler()
    return default_callbacks(run, 0, "val/accuracy", *made)


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure the loop written by hand, and the time that each layer of our stack adds to it."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = UEA("JapaneseVowels", protocol="test", max_length=29)
    data.setup("fit")
    if quick:
        data.splits["train"] = Subset(data.splits["train"], range(20))
    stacks: dict[str, Callbacks] = {
        "Lightning, logging": lambda run: [],
        "+ default callbacks": list_callbacks,
        "+ spectral monitor: our stack": lambda run: [*list_callbacks(run), SpectralMonitor()],
    }
    runs = {"by hand": partial(train_by_hand, data, device, quick)} | {
        name: partial(train_by_lightning, data, device, quick, callbacks)
        for name, callbacks in stacks.items()
    }
    timings = interleave_runs(runs, 0.0 if quick else 120.0, min_rounds=1 if quick else 2)
    steps = EPOCHS * len(DataLoader(data.splits["train"], batch_size=16))
    table = Table(
        *("training the UEA encoder", "steps/s", "seconds / by hand (aim <= 1.10)", "noise"),
        title=f"Training, {steps} steps of JapaneseVowels with batches of 16, wall time",
    )
    for name, timing in timings.items():
        ratio = timing.best / timings["by hand"].best
        aim = 1.10 if name.endswith("our stack") else None
        table.add_row(
            *(name, f"{steps / timing.best:.2f}", compare_with_aim(ratio, aim)),
            format_noise({name: timing}),
        )
    return [table]
