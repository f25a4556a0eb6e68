"""A run that was stopped and resumed sees the batches of one that was not, and ends the same."""

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from experiment_kit.data.loaders import build_train_loader
from experiment_kit.errors import UserError
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset, get_worker_info

SIZE, BATCH = 22, 4  # six batches, the last of two items


class Items(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        worker = get_worker_info()
        values = torch.randn(3, generator=torch.Generator().manual_seed(index))
        drawn = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
        return index, values, drawn, worker.seed - worker.id if worker else 0


class Net(pl.LightningModule):
    def __init__(self, workers=0, validate=False, seed=1, batch=BATCH, repeats=1):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 1)
        self.workers, self.validate, self.seed, self.batch = workers, validate, seed, batch
        self.repeats = repeats
        self.seen = []

    def training_step(self, batch, batch_idx):
        index, x, drawn, worker_seed = batch
        place = self.current_epoch, batch_idx
        self.seen.append((*place, index.tolist(), drawn.tolist(), worker_seed[0].item()))
        return (self.linear(x) - index[:, None]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.linear(batch[1])

    def train_dataloader(self):
        return build_train_loader(
            Items(),
            self.batch,
            self.seed,
            trainer=self.trainer,
            repeats=self.repeats,
            num_workers=self.workers,
        )

    def val_dataloader(self):
        return DataLoader(Items(), BATCH) if self.validate else []

    def configure_optimizers(self):
        # builds the training loader before the checkpoint's position is restored
        assert self.trainer.estimated_stepping_batches in (20, 22, 24)
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Stop(Callback):
    """Save and leave in a hook of an epoch, at a batch if one is given."""

    def __init__(self, path, hook, epoch, batch=None):
        self.path, self.epoch, self.batch = path, epoch, batch
        setattr(self, hook, self.stop)

    def stop(self, trainer, *_):
        at = trainer.fit_loop.epoch_loop.batch_idx
        if trainer.current_epoch == self.epoch and self.batch in (None, at):
            trainer.save_checkpoint(self.path)
            raise SystemExit(75)


def fit(net, stop=None, ckpt_path=None, **limits):
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        callbacks=[stop] if stop else [],
        **(limits or {"max_epochs": 4}),
    )
    trainer.fit(net, ckpt_path=ckpt_path)
    return net


def interrupted(path, hook, epoch, batch, limits, **net):
    first = Net(**net)
    with pytest.raises(SystemExit):
        fit(first, Stop(path, hook, epoch, batch), **limits)
    return first, fit(Net(**net), ckpt_path=path, **limits)


def items(*nets):
    """All but the seeds of workers: epoch, batch, items, and what they drew."""
    return [step[:4] for net in nets for step in net.seen]


PLACES = {
    "mid-epoch": ("on_train_batch_end", 2, 2),
    "last batch": ("on_train_batch_end", 2, 5),
    "epoch end": ("on_train_epoch_end", 1, None),
    "first batch": ("on_train_batch_end", 0, 0),
    "broken batch": ("on_train_batch_start", 2, 3),  # read but not trained: it comes again
    "validation": ("on_validation_end", 2, 3),
    "last validation": ("on_validation_end", 2, 5),
}
LIMITS = {"epochs": {"max_epochs": 4}, "steps": {"max_steps": 22}}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_run_is_the_uninterrupted_one(place, limit, tmp_path):
    validate = "validation" in place
    limits = LIMITS[limit] | ({"val_check_interval": 2} if validate else {})
    whole = fit(Net(validate=validate), **limits)
    first, second = interrupted(tmp_path / "c.ckpt", *PLACES[place], limits, validate=validate)
    assert len(whole.seen) in (22, 24)
    assert len(second.seen) < len(whole.seen)
    assert items(first, second) == items(whole)
    assert torch.equal(second.linear.weight, whole.linear.weight)
    assert torch.equal(second.linear.bias, whole.linear.bias)


def test_a_limit_of_batches_ends_the_epoch(tmp_path):
    limits = {"max_epochs": 4, "limit_train_batches": 5}
    first, second = interrupted(tmp_path / "c.ckpt", "on_train_batch_end", 2, 4, limits)
    assert items(first, second) == items(fit(Net(), **limits))


@pytest.fixture(scope="module")
def whole_with_workers():
    return fit(Net(workers=2))


@pytest.mark.parametrize("place", ["mid-epoch", "epoch end"])
def test_workers_see_the_same_items_with_seeds_of_the_epoch(place, whole_with_workers, tmp_path):
    whole = whole_with_workers
    first, second = interrupted(tmp_path / "c.ckpt", *PLACES[place], {}, workers=2)
    assert first.seen + second.seen == whole.seen  # the seeds too
    assert items(whole) == items(fit(Net()))
    assert torch.equal(second.linear.weight, whole.linear.weight)
    seeds = {epoch: {step[4] for step in whole.seen if step[0] == epoch} for epoch in range(4)}
    assert all(len(of_epoch) == 1 for of_epoch in seeds.values())
    assert len(set.union(*seeds.values())) == 4


def test_a_run_with_repeats_resumes_in_mid_epoch(tmp_path):
    first, second = interrupted(tmp_path / "c.ckpt", *PLACES["mid-epoch"], {}, repeats=3)
    whole = fit(Net(repeats=3))
    assert items(first, second) == items(whole)
    assert torch.equal(second.linear.weight, whole.linear.weight)
    index, drawn = whole.seen[0][2:4]
    assert index[0] == index[1] == index[2] != index[3]
    assert len(set(drawn)) == BATCH


def test_a_trainer_that_overfits_is_given_the_same_batches_in_every_epoch():
    net = fit(Net(validate=True), max_epochs=10, overfit_batches=2)
    assert [index for _, _, index, _ in items(net)] == 10 * [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_drawing_leaves_the_state_of_the_trainer_alone():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    batches = list(build_train_loader(Items(), BATCH, seed=0))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert len(set(torch.cat([drawn for _, _, drawn, _ in batches]).tolist())) == SIZE


@pytest.mark.parametrize(("batch", "count"), [(4, 5), (22, 1), (30, 1)])
def test_a_last_incomplete_batch_is_dropped_unless_it_is_the_only_one(batch, count):
    loader = build_train_loader(Items(), batch, seed=0, drop_last=True)
    assert len(list(loader)) == len(loader) == count


def test_a_checkpoint_from_before_there_were_repeats_is_taken():
    state = build_train_loader(Items(), BATCH, seed=0).state_dict()
    del state["number of repeats"]
    build_train_loader(Items(), BATCH, seed=0).load_state_dict(state)
    with pytest.raises(UserError, match="another number of repeats"):
        build_train_loader(Items(), BATCH, seed=0, repeats=3).load_state_dict(state)


@pytest.mark.parametrize("changed", [{"batch": 5}, {"seed": 2}, {"repeats": 3}])
def test_what_gives_the_position_its_meaning_must_not_change_in_mid_epoch(changed, tmp_path):
    limits = {"max_steps": 20}
    with pytest.raises(SystemExit):
        fit(Net(), Stop(tmp_path / "c.ckpt", "on_train_batch_end", 1, 2), **limits)
    with pytest.raises(UserError, match="cannot resume in mid-epoch with another"):
        fit(Net(**changed), ckpt_path=tmp_path / "c.ckpt", **limits)
