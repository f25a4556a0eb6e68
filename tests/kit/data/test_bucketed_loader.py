"""Bucketed loaders in a trainer: resumable, the same for any number of workers."""

import random

import lightning.pytorch as pl
import pytest
import torch
from experiment_kit.data.loaders import bucketed_loader, sorted_loader
from experiment_kit.errors import UserError
from lightning.pytorch.callbacks import Callback
from torch.utils.data import Dataset

SIZE = 17


class Items(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index, random.random() + torch.rand(()).item()


class Net(pl.LightningModule):
    def __init__(self, workers=0, budget=9.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.workers, self.budget, self.seen = workers, budget, []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch_idx, batch))
        return self.weight * len(batch)

    def validation_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, "validation", batch))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return [index for index, _ in batch]

    def train_dataloader(self):
        return bucketed_loader(Items(), lengths(), self.budget, 1, self.trainer, 4,
                               num_workers=self.workers, collate_fn=list)  # fmt: skip

    def val_dataloader(self):
        return self.predict_dataloader()[0] if self.trainer.overfit_batches else []

    def predict_dataloader(self):
        return [sorted_loader(Items(), lengths(), 9.0, collate_fn=list) for _ in range(2)]

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lengths():
    return [1 + index % 5 for index in range(SIZE)]


class Stop(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if (trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx) == (1, 2):
            trainer.save_checkpoint(self.path)
            raise SystemExit(75)


def trainer(*callbacks, **settings):
    return pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, max_epochs=3,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        callbacks=list(callbacks), num_sanity_val_steps=0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_sees_the_batches_and_draws_of_the_uninterrupted_one(workers, tmp_path):
    whole, first, second = Net(), Net(workers), Net(workers)
    trainer().fit(whole)
    with pytest.raises(SystemExit):
        trainer(Stop(tmp_path / "c.ckpt")).fit(first)
    trainer().fit(second, ckpt_path=tmp_path / "c.ckpt")
    assert first.seen + second.seen == whole.seen
    for epoch in range(3):
        seen = [index for of, _, batch in whole.seen if of == epoch for index, _ in batch]
        assert sorted(seen) == list(range(SIZE))
    with pytest.raises(UserError, match="another budget of a batch"):
        trainer().fit(Net(budget=11.0), ckpt_path=tmp_path / "c.ckpt")


def test_a_trainer_that_overfits_is_given_the_same_batches_in_every_epoch():
    net = Net()
    trainer(overfit_batches=2).fit(net)
    seen = [[[i for i, _ in batch] for of, _, batch in net.seen if of == n] for n in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 2 + 2  # of training and of validation


def test_lightning_predicts_each_item_once():
    for batches in trainer().predict(Net()):
        found = [index for batch in batches for index in batch]
        assert sorted(found) == list(range(SIZE))
        assert [lengths()[index] for index in found] == sorted(lengths())
