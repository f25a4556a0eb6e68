"""Batches by padded length: each item once, within the budget, little padding, resumable."""

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from experiment_kit.data.loaders import bucketed_loader, sorted_loader
from experiment_kit.data.samplers import BucketSampler, compute_batch_sizes
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import Callback
from torch.utils.data import Dataset

LENGTHS = st.lists(st.floats(0.1, 30), min_size=1, max_size=40)


def items(sampler: BucketSampler) -> list[list[int]]:
    return [batch for _, _, batch in sampler]


@given(LENGTHS, st.floats(1, 60), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_each_item_once_an_epoch_within_the_budget(lengths, budget, largest, epoch, shuffle):
    sampler = BucketSampler(lengths, budget, 1, largest, shuffle, epoch)
    batches = items(sampler)
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for batch in batches:
        padded = len(batch) * max(lengths[item] for item in batch)
        assert len(batch) <= largest
        assert len(batch) == 1 or padded <= budget * (1 + 1e-9)


@given(LENGTHS, st.integers(0, 3), st.integers(0, 3), st.integers(1, 4))
def test_a_pure_function_of_seed_and_epoch_with_equal_ranks(lengths, seed, epoch, ranks):
    def dealt(**options):
        return [items(BucketSampler(lengths, 40, seed, 3, epoch=epoch, num_replicas=ranks,
                                    rank=rank, **options)) for rank in range(ranks)]  # fmt: skip

    batches = dealt()
    assert batches == dealt()
    assert len({len(mine) for mine in batches}) == 1
    whole = items(BucketSampler(lengths, 40, seed, 3, epoch=epoch))
    in_turn = [batch for place in zip(*batches, strict=True) for batch in place]
    assert in_turn[: len(whole)] == whole
    assert in_turn[len(whole) :] == (whole * ranks)[: len(in_turn) - len(whole)]
    sampler = BucketSampler(lengths, 40, seed, 3)
    first = items(sampler)
    sampler.set_epoch(epoch)
    assert items(sampler) == whole
    assert len(first) == len(whole)  # an epoch has as many batches as every other


@given(LENGTHS, st.data())
def test_what_is_left_after_a_skip_is_the_tail(lengths, data):
    whole = list(BucketSampler(lengths, 40, seed=0, largest=3, epoch=2))
    skip = data.draw(st.integers(0, len(whole)))
    sampler = BucketSampler(lengths, 40, seed=0, largest=3, epoch=2, skip=skip)
    assert list(sampler) == whole[skip:]
    assert list(sampler) == whole
    assert len(sampler) == len(whole)


def test_batches_change_from_epoch_to_epoch_and_padding_stays_small():
    lengths = np.random.default_rng(0).lognormal(2.2, 0.5, 3000).clip(1, 30).tolist()
    sampler = BucketSampler(lengths, 300, seed=0)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = items(sampler)
        padded = sum(len(batch) * max(lengths[item] for item in batch) for batch in batches)
        assert 1 - sum(lengths) / padded < 0.1
        assert padded / len(batches) > 0.8 * 300
        seen.append({frozenset(batch) for batch in batches})
        means = [np.mean([lengths[item] for item in batch]) for batch in batches]
        assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.4  # no curriculum
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]


@pytest.mark.parametrize(
    ("lengths", "budget", "largest"),
    [([], 1.0, 1), ([1.0, 0.0], 1.0, 1), ([1.0], 0.0, 1), ([1.0], 1.0, -1), ([float("nan")], 1, 1)],
)
def test_what_is_not_positive_is_refused(lengths, budget, largest):
    with pytest.raises(ValueError, match="must be positive"):
        BucketSampler(lengths, budget, 0, largest)


def test_cut_leaves_what_is_too_long_alone():
    assert compute_batch_sizes([1, 2, 3, 10, 11], 4, 9) == [2, 1, 1, 1]
    assert compute_batch_sizes([1, 1, 1], 100, 2) == [2, 1]


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
