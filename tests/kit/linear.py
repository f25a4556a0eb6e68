"""An app of a line or two: a linear layer over the few numbers that its data module draws."""

import torch
import torch.nn.functional as F
from experiment_kit.cli import AppSpec
from experiment_kit.data.datamodule import SplitDataModule
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

SIZE, BATCH, STEPS = 7, 2, 4


class Line(LightningModule):
    """`width` is the data's too; `classes` comes from it; `weights_source` is put into a result."""

    def __init__(
        self, classes: int, width: int = 3, weights_source: str | None = None, lr: float = 0.5
    ):
        super().__init__()
        self.save_hyperparameters()
        self.weights_source, self.lr = weights_source, lr
        self.model = torch.nn.Linear(width, classes)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        # the first epoch is always the best, so that it is not the last
        self.log("val/accuracy", -float(self.current_epoch))

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        prefix = "test/" if dataloader_idx == 0 else "test/other_"
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log(f"{prefix}loss", loss, add_dataloader_idx=False)

    def predict_step(self, batch, batch_idx):
        return self.model(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Points(SplitDataModule):
    """Points that a teacher has labeled; with `others`, two sets of them to be tested."""

    def __init__(self, width: int = 3, others: bool = False, batch_size: int = BATCH, **kwargs):
        super().__init__("points", batch_size=batch_size, **kwargs)
        self.width, self.others, self.classes = width, others, 2

    def setup(self, stage):
        drawn = torch.Generator().manual_seed(self.seed)
        x = torch.randn(SIZE, self.width, generator=drawn)
        labeled = TensorDataset(x, (x[:, 0] > 0).long())
        self.splits = dict.fromkeys(("train", "val", "test"), labeled)

    def test_dataloader(self):
        return [self.eval_loader("test")] * (1 + self.others)


APP = AppSpec(
    name="linear",
    model=Line,
    data=SplitDataModule,
    links={"classes": "classes"},
    links_from_model={"model.width": "data.init_args.width"},
    score_last=True,
)


def arguments(folder, *extra: str) -> list[str]:
    return [
        "--data=tests.kit.linear.Points",
        f"--run.folder={folder}",
        "--trainer.max_epochs=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        "--trainer.num_sanity_val_steps=0",
        "--spectral.every_n_steps=0",
        *extra,
    ]
