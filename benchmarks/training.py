"""Our training stack against a loop written by hand: same model, optimiser, clipping, batches."""

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
from experiment_kit.diagnostics.monitor import SpectralMonitor
from experiment_kit.run import Run
from experiment_kit.training.callbacks import build_logger, default_callbacks
from experiment_kit.training.lightning_patches import AtomicCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from measure import interleave, judge, noise
from rich.table import Table
from torch.utils.data import DataLoader

# 17 batches of the 270 samples: three epochs are 51 steps, in which the monitor, due every 50,
# measures once
EPOCHS, RATE, CLIP = 3, 1e-3, 4.0
Extras = Callable[[Run], list[Callback]]


class Stopwatch(Callback):
    """Seconds from the first batch to the end of the last epoch: neither set-up nor tear-down."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.perf_counter() - self.began


def model(data: UEA, quick: bool) -> SequenceClassifier:
    """The encoder at the papers' size."""
    torch.manual_seed(0)
    size = {"dim": 64, "ffn_dim": 128} if quick else {}
    return SequenceClassifier(
        data.num_features,
        data.num_classes,
        data.max_length,
        optimizer=partial(torch.optim.RAdam, lr=RATE),
        **size,
    )


def by_hand(data: UEA, device: str, quick: bool) -> float:
    """What a paper's repository would write."""
    net = model(data, quick).model.to(device).train()
    optimizer = torch.optim.RAdam(net.parameters(), lr=RATE)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in DataLoader(data.splits["train"], batch_size=16, shuffle=True):
            x, mask, label = (part.to(device) for part in batch)
            loss = F.cross_entropy(net(x, mask), label)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
    loss.item()  # waits for the device
    return time.perf_counter() - began


def by_trainer(data: UEA, device: str, quick: bool, extras: Extras) -> float:
    """Lightning with the settings of configs/base.yaml and these callbacks."""
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
            enable_checkpointing=bool(extras(run)),
            default_root_dir=folder,
            plugins=[AtomicCheckpointIO()],
            logger=build_logger(run, None),
            callbacks=[watch, *extras(run)],
        )
        trainer.fit(model(data, quick), datamodule=data)
    return watch.seconds


def list_callbacks(run: Run) -> list[Callback]:
    return default_callbacks(run, 0, "val/accuracy")


def tables(device: str, quick: bool) -> list[Table]:
    """Steps per second of the hand-written loop, and what each layer of our stack adds to it."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = UEA("JapaneseVowels", protocol="test", max_length=29)
    data.setup("fit")
    stacks: dict[str, Extras] = {
        "Lightning, logging": lambda run: [],
        "+ default callbacks": list_callbacks,
        "+ spectral monitor: our stack": lambda run: [*list_callbacks(run), SpectralMonitor()],
    }
    runs = {"by hand": partial(by_hand, data, device, quick)} | {
        name: partial(by_trainer, data, device, quick, extras) for name, extras in stacks.items()
    }
    took = interleave(runs, seconds=0.0 if quick else 120.0, least=1 if quick else 2)
    steps = EPOCHS * len(DataLoader(data.splits["train"], batch_size=16))
    table = Table(
        *("training the UEA encoder", "steps/s", "seconds / by hand (aim <= 1.10)", "noise"),
        title=f"Training, {steps} steps of JapaneseVowels with batches of 16, wall time",
    )
    for name, timing in took.items():
        ratio = timing.best / took["by hand"].best
        aim = 1.10 if name.endswith("our stack") else None
        table.add_row(name, f"{steps / timing.best:.2f}", judge(ratio, aim), noise({name: timing}))
    return [table]
