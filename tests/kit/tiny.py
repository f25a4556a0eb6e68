"""A tiny app on the kit's base classes, over a few random tokens."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from experiment_kit.cli import AppSpec
from experiment_kit.data.datamodule import SplitDataModule
from experiment_kit.training.module import AttentionModule
from torch import nn
from torch.utils.data import TensorDataset

DIM, LENGTH = 4, 5


class Classifier(AttentionModule):
    """Overrides two defaults, and has one argument of its own."""

    def __init__(
        self,
        classes: int,
        num_layers: int = 2,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.RAdam,
        weight_decay: float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, weight_decay=weight_decay, **kwargs)
        build = self.attention_builder(num_layers, DIM, 2)
        self.model = nn.Sequential(*map(build, range(num_layers)), nn.Linear(DIM, classes))

    def training_step(self, batch, batch_idx):
        x, label = batch
        return self.compute_training_loss(lambda: F.cross_entropy(self.model(x).mean(1), label))

    def validation_step(self, batch, batch_idx):
        self.log("val/accuracy", -float(self.current_epoch))

    def test_step(self, batch, batch_idx):
        self.log("test/loss", F.cross_entropy(self.model(batch[0]).mean(1), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.model(batch[0])

    def monitored_layers(self):
        return self.model[:-1]

    def token_mask(self, batch):
        return None

    def example_inputs(self, data, batch_size):
        return (torch.randn(batch_size, LENGTH, DIM),)


class Points(SplitDataModule):
    """Random tokens; it has no `val_fraction`, and another default batch size."""

    DATASETS = ("points", "others")
    LINKED_SIZES = ("classes",)
    classes = 3

    def __init__(self, dataset_name: str, batch_size: int = 2, **kwargs: Any) -> None:
        super().__init__(dataset_name, batch_size=batch_size, val_fraction=0.5, **kwargs)

    def load_splits(self, split):
        drawn = torch.Generator().manual_seed(self.seed)
        x = torch.randn(6, LENGTH, DIM, generator=drawn)
        return {split: TensorDataset(x, torch.arange(6) % 3)}


APP = AppSpec(name="tiny", model=Classifier, data=Points, links={"classes": "classes"})


def arguments(folder, *extra: str) -> list[str]:
    trainer = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": "false"}
    trainer |= {"enable_model_summary": "false", "num_sanity_val_steps": 0}
    settings = [f"--trainer.{key}={value}" for key, value in trainer.items()]
    data = ["--data=tests.kit.tiny.Points", "--data.init_args.dataset_name=points"]
    return [*data, f"--run.folder={folder}", *settings, "--spectral.every_n_steps=2", *extra]
