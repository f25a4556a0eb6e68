"""Samplers: a pure function of seed, epoch and rank; batches within a budget of padded length."""

import numpy as np
import pytest
import torch
from experiment_kit.data.samplers import BucketSampler, EpochSampler
from hypothesis import given
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

SIZE = 22
LENGTHS = st.lists(st.floats(0.1, 30), min_size=1, max_size=40)


def list_batches(sampler: BucketSampler) -> list[list[int]]:
    return [batch for _, _, batch in sampler]


@given(LENGTHS, st.floats(1, 60), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_each_item_once_an_epoch_within_the_budget(lengths, budget, largest, epoch, shuffle):
    sampler = BucketSampler(lengths, budget, 1, largest, shuffle, epoch)
    batches = list_batches(sampler)
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for batch in batches:
        padded = len(batch) * max(lengths[item] for item in batch)
        assert len(batch) <= largest
        assert len(batch) == 1 or padded <= budget * (1 + 1e-9)


@given(LENGTHS, st.integers(0, 3), st.integers(0, 3), st.integers(1, 4))
def test_a_pure_function_of_seed_and_epoch_with_equal_ranks(lengths, seed, epoch, ranks):
    def deal_batches(**options):
        return [list_batches(BucketSampler(lengths, 40, seed, 3, epoch=epoch, num_replicas=ranks,
                                    rank=rank, **options)) for rank in range(ranks)]  # fmt: skip

    batches = deal_batches()
    assert batches == deal_batches()
    assert len({len(mine) for mine in batches}) == 1
    whole = list_batches(BucketSampler(lengths, 40, seed, 3, epoch=epoch))
    in_turn = [batch for place in zip(*batches, strict=True) for batch in place]
    assert in_turn[: len(whole)] == whole
    assert in_turn[len(whole) :] == (whole * ranks)[: len(in_turn) - len(whole)]
    sampler = BucketSampler(lengths, 40, seed, 3)
    first = list_batches(sampler)
    sampler.set_epoch(epoch)
    assert list_batches(sampler) == whole
    assert len(first) == len(whole)  # an epoch has as many batches as every other


@given(LENGTHS, st.data())
def test_what_is_left_after_a_skip_is_the_tail(lengths, data):
    whole = list(BucketSampler(lengths, 40, seed=0, largest=3, epoch=2))
    skip = data.draw(st.integers(0, len(whole)))
    sampler = BucketSampler(lengths, 40, seed=0, largest=3, epoch=2, skip=skip)
    assert [list(sampler), list(sampler)] == [whole[skip:], whole]
    assert len(sampler) == len(whole)


def test_batches_change_from_epoch_to_epoch_and_padding_stays_small():
    lengths = np.random.default_rng(0).lognormal(2.2, 0.5, 3000).clip(1, 30).tolist()
    sampler = BucketSampler(lengths, 300, seed=0)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list_batches(sampler)
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
def test_an_argument_that_is_not_positive_is_an_error(lengths, budget, largest):
    with pytest.raises(ValueError, match="must be positive"):
        BucketSampler(lengths, budget, 0, largest)


def list_orders(seed, epochs=3, **kwargs):
    sampler = EpochSampler(SIZE, seed, **kwargs)
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    torch.manual_seed(5)
    one = list_orders(0)
    torch.manual_seed(6)
    assert list_orders(0) == one
    assert [list(EpochSampler(SIZE, 0, epoch=e)) for e in range(3)] == one
    assert all(sorted(order) == list(range(SIZE)) for order in one)
    # seed 1 is not seed 0 shifted
    assert len({tuple(order) for order in one + list_orders(1)}) == 6
    assert list_orders(0, shuffle=False) == [list(range(SIZE))] * 3


@given(size=st.integers(1, 40), replicas=st.integers(1, 7), seed=st.integers(0, 2**40))
def test_ranks_have_equally_many_items_and_leave_none_out(size, replicas, seed):
    options = [{"num_replicas": replicas, "rank": rank} for rank in range(replicas)]
    ranks = [list(EpochSampler(size, seed, **own)) for own in options]
    dealt = [index for turn in zip(*ranks, strict=True) for index in turn]
    whole = list(EpochSampler(size, seed))
    assert dealt == [whole[place % size] for place in range(len(dealt))]
    assert size <= len(dealt) < size + replicas
    assert {len(rank) for rank in ranks} == {len(EpochSampler(size, 0, num_replicas=replicas))}


@given(st.integers(1, 900), st.integers(1, 7), st.integers(2, 4), st.integers(0, 2**40))
def test_repeats_follow_the_rule_of_timm(size, replicas, repeats, seed):
    kwargs = [{"num_replicas": replicas, "rank": rank} for rank in range(replicas)]
    for one in kwargs:
        theirs = RepeatAugSampler(range(size), shuffle=False, num_repeats=repeats, **one)
        ours = EpochSampler(size, seed, shuffle=False, repeats=repeats, **one)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
    whole = [item for item in EpochSampler(size, seed) for _ in range(repeats)]
    ranks = [list(EpochSampler(size, seed, repeats=repeats, **one)) for one in kwargs]
    dealt = [index for turn in zip(*ranks, strict=True) for index in turn]
    assert dealt == [whole[place % len(whole)] for place in range(len(dealt))]


def test_a_skip_is_for_the_first_iteration_of_its_epoch():
    whole = list_orders(3)
    sampler = EpochSampler(SIZE, 3, epoch=1, skip=8)
    sampler.set_epoch(1)
    assert len(sampler) == SIZE
    assert [list(sampler), list(sampler)] == [whole[1][8:], whole[1]]
    sampler = EpochSampler(SIZE, 3, epoch=1, skip=8)
    sampler.set_epoch(2)
    assert list(sampler) == whole[2]


@pytest.mark.parametrize("name", ["size", "repeats"])
def test_a_count_that_is_not_positive_is_an_error(name):
    with pytest.raises(ValueError, match=f"sampler.{name} must be"):
        EpochSampler(**{"size": SIZE, "seed": 0, name: 0})
