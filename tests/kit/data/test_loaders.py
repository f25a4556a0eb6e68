"""A run that was stopped and resumed sees the batches of one that was not, and ends the same."""

import random

import numpy as np
import pytest
import torch
from attention_speech.data.bucketing import BucketSampler, bucketed_loader, sorted_loader
from experiment_kit.data.loaders import EpochSampler, build_train_loader
from experiment_kit.errors import UserError
from experiment_kit.training.module import AttentionModule
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule
from timm.data.distributed_sampler import RepeatAugSampler
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from tests.kit.trainers import SaveAndExit, make_trainer

SIZE, BATCH = 22, 4  # six batches, the last of two items


class Items(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        worker = get_worker_info()
        values = torch.randn(3, generator=torch.Generator().manual_seed(index))
        drawn = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
        return index, values, drawn, worker.seed - worker.id if worker else 0


class Net(LightningModule):
    on_load_checkpoint = AttentionModule.on_load_checkpoint  # without the callbacks of a run

    def __init__(self, workers=0, validate=False, batch=BATCH, repeats=1):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 1)
        self.validate, self.seen = validate, []
        self.options = {"batch_size": batch, "seed": 1, "repeats": repeats, "num_workers": workers}

    def training_step(self, batch, batch_idx):
        index, x, drawn, worker_seed = batch
        place = self.current_epoch, batch_idx, index.tolist()
        self.seen.append((*place, drawn.tolist(), worker_seed[0].item()))
        return (self.linear(x) - index[:, None]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.linear(batch[1])

    def train_dataloader(self):
        return build_train_loader(Items(), trainer=self.trainer, **self.options)

    def val_dataloader(self):
        return DataLoader(Items(), BATCH) if self.validate else []

    def configure_optimizers(self):
        # builds the training loader before the checkpoint's position is restored
        assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def fit(net, *callbacks, ckpt_path=None, **limits):
    make_trainer(*callbacks, **(limits or {"max_epochs": 4})).fit(net, ckpt_path=ckpt_path)
    return net


def fit_interrupted(path, hook, epoch, batch, limits, **net):
    """Return the net that was stopped, and the one that resumed."""
    first = Net(**net)
    with pytest.raises(SystemExit):
        fit(first, SaveAndExit(path, hook, epoch, batch), **limits)
    return first, fit(Net(**net), ckpt_path=path, **limits)


def list_steps(*nets):
    """Return epoch, batch, items and what they drew; the seeds of workers are left out."""
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
    options = {"validate": "validation" in place, "repeats": 3 if place == "mid-epoch" else 1}
    limits = LIMITS[limit] | ({"val_check_interval": 2} if options["validate"] else {})
    whole = fit(Net(**options), **limits)
    first, second = fit_interrupted(tmp_path / "c.ckpt", *PLACES[place], limits, **options)
    assert len(whole.seen) in (22, 24)
    assert len(second.seen) < len(whole.seen)
    assert list_steps(first, second) == list_steps(whole)
    assert all(map(torch.equal, second.parameters(), whole.parameters()))


@pytest.fixture(scope="module")
def whole_with_workers():
    return fit(Net(workers=2))


@pytest.mark.parametrize("place", ["mid-epoch", "epoch end"])
def test_workers_see_the_same_items_with_seeds_of_the_epoch(place, whole_with_workers, tmp_path):
    whole = whole_with_workers
    first, second = fit_interrupted(tmp_path / "c.ckpt", *PLACES[place], {}, workers=2)
    assert first.seen + second.seen == whole.seen  # the seeds too
    assert list_steps(whole) == list_steps(fit(Net()))
    assert torch.equal(second.linear.weight, whole.linear.weight)
    seeds = {epoch: {step[4] for step in whole.seen if step[0] == epoch} for epoch in range(4)}
    assert all(len(of_epoch) == 1 for of_epoch in seeds.values())
    assert len(set.union(*seeds.values())) == 4


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


def test_the_batch_size_must_not_change_in_mid_epoch(tmp_path):
    limits = {"max_steps": 20}
    with pytest.raises(SystemExit):
        fit(Net(), SaveAndExit(tmp_path / "c.ckpt", "on_train_batch_end", 1, 2), **limits)
    with pytest.raises(UserError, match="cannot resume in mid-epoch with another"):
        fit(Net(batch=5), ckpt_path=tmp_path / "c.ckpt", **limits)


SIZES = [1 + index % 5 for index in range(SIZE)]


class BucketNet(Net):
    """Trains on batches of items of similar length; validates from short to long."""

    def __init__(self, workers=0, budget=9.0):
        super().__init__(workers)
        self.budget, self.validated = budget, []

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch[0].tolist())

    def train_dataloader(self):
        options = {"seed": 1, "largest": 4, "num_workers": self.options["num_workers"]}
        options |= {"trainer": self.trainer, "collate_fn": default_collate}
        return bucketed_loader(Items(), SIZES, self.budget, **options)

    def val_dataloader(self):
        return sorted_loader(Items(), SIZES, 9.0, collate_fn=default_collate)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_sees_the_buckets_and_draws_of_the_uninterrupted_one(workers, tmp_path):
    path = tmp_path / "c.ckpt"
    whole, first, second = BucketNet(), BucketNet(workers), BucketNet(workers)
    fit(whole, max_epochs=3)
    with pytest.raises(SystemExit):
        fit(first, SaveAndExit(path, "on_train_batch_end", 1, 2), max_epochs=3)
    fit(second, ckpt_path=path, max_epochs=3)
    assert list_steps(first, second) == list_steps(whole)
    for epoch in range(3):
        seen = [index for of, _, items, _ in list_steps(whole) if of == epoch for index in items]
        assert sorted(seen) == list(range(SIZE))
    with pytest.raises(UserError, match="another batch size"):
        fit(BucketNet(budget=11.0), ckpt_path=path, max_epochs=3)


def test_a_trainer_that_overfits_is_given_the_same_batches_in_every_epoch():
    net = fit(Net(validate=True), max_epochs=3, overfit_batches=2)
    assert [index for _, _, index, _ in list_steps(net)] == 3 * [[0, 1, 2, 3], [4, 5, 6, 7]]
    net = fit(BucketNet(), max_epochs=3, overfit_batches=2)
    for batches in ([items for _, _, items, _ in list_steps(net)], net.validated):
        assert batches == batches[:2] * 3


LENGTHS = st.lists(st.floats(0.1, 30), min_size=1, max_size=40)


def list_items(sampler: EpochSampler) -> list:
    return [chosen for _, _, chosen in sampler]


@given(LENGTHS, st.floats(1, 60), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_each_item_once_an_epoch_within_the_budget(lengths, budget, largest, epoch, shuffle):
    sampler = BucketSampler(lengths, budget, 1, largest, shuffle, epoch=epoch)
    batches = list_items(sampler)
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for batch in batches:
        padded = len(batch) * max(lengths[item] for item in batch)
        assert len(batch) <= largest
        assert len(batch) == 1 or padded <= budget * (1 + 1e-9)


@pytest.mark.parametrize(
    "build",
    [
        lambda seed, size=SIZE, **place: EpochSampler(size, seed, **place),
        lambda seed, size=SIZE, **place: BucketSampler(SIZES[:size], 6.0, seed, 3, **place),
    ],
    ids=["items", "buckets"],
)
class TestAnOrder:
    def test_a_function_of_seed_and_epoch_alone(self, build):
        orders = [list_items(build(seed, epoch=e)) for seed in (0, 1) for e in range(3)]
        torch.manual_seed(5)
        sampler = build(0)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert list_items(sampler) == orders[epoch]
        assert len({str(order) for order in orders}) == 6  # seed 1 is not seed 0 shifted
        assert len({len(order) for order in orders}) == 1

    @given(st.integers(1, SIZE), st.integers(1, 7), st.integers(0, 2**40))
    def test_ranks_have_equally_many_and_leave_none_out(self, build, size, replicas, seed):
        options = [{"num_replicas": replicas, "rank": rank} for rank in range(replicas)]
        ranks = [list_items(build(seed, size, **own)) for own in options]
        dealt = [item for turn in zip(*ranks, strict=True) for item in turn]
        whole = list_items(build(seed, size))
        assert dealt == [whole[place % len(whole)] for place in range(len(dealt))]
        assert len(whole) <= len(dealt) < len(whole) + replicas

    def test_a_skip_is_for_the_first_iteration_of_its_epoch(self, build):
        whole, other = list(build(3, epoch=1)), list(build(3, epoch=2))
        sampler = build(3, epoch=1, skip=4)
        sampler.set_epoch(1)
        assert len(sampler) == len(whole)
        assert [list(sampler), list(sampler)] == [whole[4:], whole]
        sampler = build(3, epoch=1, skip=4)
        sampler.set_epoch(2)
        assert list(sampler) == other


def test_batches_change_from_epoch_to_epoch_and_padding_stays_small():
    lengths = np.random.default_rng(0).lognormal(2.2, 0.5, 3000).clip(1, 30).tolist()
    sampler = BucketSampler(lengths, 300, seed=0)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list_items(sampler)
        padded = sum(len(batch) * max(lengths[item] for item in batch) for batch in batches)
        assert 1 - sum(lengths) / padded < 0.1
        seen.append({frozenset(batch) for batch in batches})
        means = [np.mean([lengths[item] for item in batch]) for batch in batches]
        assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.4  # no curriculum
    assert not seen[0] & seen[1]


@given(st.integers(1, 900), st.integers(1, 7), st.integers(2, 4))
def test_repeats_follow_the_rule_of_timm(size, replicas, repeats):
    for rank in range(replicas):
        one = {"num_replicas": replicas, "rank": rank}
        theirs = RepeatAugSampler(range(size), shuffle=False, num_repeats=repeats, **one)
        ours = EpochSampler(size, 0, shuffle=False, repeats=repeats, **one)
        assert list_items(ours) == list(theirs)
        assert len(ours) == len(theirs)


def test_an_argument_that_is_not_positive_is_an_error():
    with pytest.raises(ValueError, match="repeats must be"):
        EpochSampler(1, 0, repeats=0)
    for lengths in ([], [1.0, 0.0], [float("nan")]):
        with pytest.raises(ValueError, match="must be positive"):
            BucketSampler(lengths, 1.0, 0)
