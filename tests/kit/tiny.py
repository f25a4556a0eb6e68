"""A tiny app on the kit's base classes, over a few random tokens."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from experiment_kit.app import AppSpec
from experiment_kit.data.datamodule import SplitDataModule
from experiment_kit.training.module import AttentionModule
from torch import nn
from torch.utils.data import TensorDataset

SIZE, LENGTH, DIM = 7, 5, 4


class Classifier(AttentionModule):
    """Overrides two defaults, and has arguments of its own."""

    def __init__(
        self,
        classes: int,
        dim: int = DIM,
        num_layers: int = 2,
        weights_source: str | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.RAdam,
        weight_decay: float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, weight_decay=weight_decay, **kwargs)
        self.weights_source = weights_source
        build = self.attention_builder(num_layers, dim, 2)
        self.model = nn.Sequential(*map(build, range(num_layers)), nn.Linear(dim, classes))

    def compute_loss(self, x, label):
        return F.cross_entropy(self.model(x).mean(1), label)

    def training_step(self, batch, batch_idx):
        return self.compute_training_loss(lambda: self.compute_loss(*batch))

    def validation_step(self, batch, batch_idx):
        # the first epoch is always the best, so that it is not the last
        self.log("val/accuracy", -float(self.current_epoch))

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        name = "test/loss" if dataloader_idx == 0 else "test/other_loss"
        self.log(name, self.compute_loss(*batch), add_dataloader_idx=False)

    def predict_step(self, batch, batch_idx):
        return self.model(batch[0])

    def example_inputs(self, data, batch_size):
        return (torch.randn(batch_size, LENGTH, DIM),)


class Points(SplitDataModule):
    """Random tokens, and `others` to be tested too; it has no `val_fraction`."""

    DATASETS = ("points", "others")
    LINKED_SIZES = ("classes",)
    classes = 3

    def __init__(
        self, dataset_name: str, batch_size: int = 2, dim: int = DIM, others: bool = False, **kwargs
    ) -> None:
        super().__init__(dataset_name, batch_size=batch_size, val_fraction=0.5, **kwargs)
        self.dim, self.others = dim, others

    def list_data_files(self):
        return ()

    def load_splits(self, split):
        x = torch.randn(SIZE, LENGTH, self.dim, generator=torch.Generator().manual_seed(self.seed))
        return {split: TensorDataset(x, torch.arange(SIZE) % 3)}

    def test_dataloader(self):
        return [self.eval_loader("test")] * (1 + self.others)


APP = AppSpec(
    name="tiny",
    model=Classifier,
    data=Points,
    links={"classes": "classes"},
    links_from_model={"model.dim": "data.init_args.dim"},
    score_last=True,
)


def arguments(folder, *extra: str) -> list[str]:
    trainer = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": "false"}
    trainer |= {"enable_model_summary": "false", "num_sanity_val_steps": 0}
    settings = [f"--trainer.{key}={value}" for key, value in trainer.items()]
    data = ["--data=tests.kit.tiny.Points", "--data.init_args.dataset_name=points"]
    return [*data, f"--run.folder={folder}", *settings, "--spectral.every_n_steps=0", *extra]
