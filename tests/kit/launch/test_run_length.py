"""Steps and samples of a run, counted by hand."""

import pytest
from experiment_kit.launch.run_length import (
    RunLength,
    SplitSizes,
    count_length,
    count_splits,
    find_time_budget,
)

SIZES = SplitSizes(train=270, test=370)


def make_config(options=None, model=None, **trainer):
    options = {"batch_size": 16, "protocol": "test"} | (options or {})
    return {"trainer": trainer, "data": {"init_args": options}, "model": model or {}}


def test_a_run_of_epochs_trains_on_what_is_not_held_out() -> None:
    options = {"protocol": "validation", "val_fraction": 0.2}
    config = make_config(options, max_epochs=100, check_val_every_n_epoch=2)
    # ceil(216 / 16) = 14 steps an epoch; 50 validations of 54 samples, two tests
    assert count_length(config, SIZES, tests=2) == RunLength(1400, 21_600, 50 * 54 + 2 * 370)


def test_a_run_of_steps_counts_its_batches() -> None:
    trainer = {"max_epochs": 100_000, "max_steps": 50, "accumulate_grad_batches": 4}
    trainer |= {"val_check_interval": 50, "check_val_every_n_epoch": None}
    config = make_config({"batch_size": 10}, **trainer)
    # 25 steps of 4 x 10 samples an epoch; 200 batches have 4 validations
    length = count_length(config, SplitSizes(1000, 30, val=20))
    assert length == RunLength(50, 2000, 4 * 20 + 30)


def test_a_global_batch_is_accumulated() -> None:
    config = make_config({"batch_size": 128}, {"global_batch": 1024}, max_epochs=3)
    # ceil(10000 / 128) = 79 batches are ceil(79 / 8) = 10 steps
    assert count_length(config, SplitSizes(10_000, 7)) == RunLength(30, 30_000, 3 * 7 + 7)


def test_each_device_has_a_batch_of_its_own() -> None:
    config = make_config({"batch_size": 10}, max_epochs=100_000, max_steps=50, devices=2)
    # 50 steps of 2 x 10 samples are an epoch of 1000
    assert count_length(config, SplitSizes(1000, 30, val=20)) == RunLength(50, 1000, 20 + 30)


@pytest.mark.parametrize(("interval", "passes"), [(0.25, 4), (1.0, 1), (5, 3), (None, 1)])
def test_validations_within_an_epoch(interval, passes) -> None:
    config = make_config(max_epochs=2, val_check_interval=interval)
    assert count_length(config, SplitSizes(17 * 16, 5)).scored == 2 * passes * 5 + 5


def test_limits_cut_the_splits() -> None:
    limits = {"limit_train_batches": 3, "limit_val_batches": 2, "limit_test_batches": 0.5}
    config = make_config(max_epochs=4, max_steps=-1, **limits)
    # ceil(370 / 16) = 24 batches: 2 of them choose, 12 test
    assert count_length(config, SIZES) == RunLength(12, 4 * 48, 4 * 32 + 12 * 16)


def test_texts_are_cut_to_blocks() -> None:
    sizes = {"train_tokens": 4100, "val_tokens": 2047, "test_tokens": 1024}
    assert count_splits(sizes, {"max_length": 1024}) == SplitSizes(4, 1, 1)
    assert count_splits({}, {"max_length": 1024}) is None


def test_only_a_budget_ends_a_run_by_time() -> None:
    stops = {"class_path": "my.EarlyStopping", "init_args": {"time": "1h"}}
    budget = {"class_path": "my.Budget", "init_args": {"time": "1.5m"}}
    assert find_time_budget(make_config(callbacks=[stops, budget])) == 90
    assert find_time_budget(make_config(callbacks=[stops])) is None
    assert find_time_budget(make_config(callbacks=None)) is None
