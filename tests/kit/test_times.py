"""What is timed, on a clock that a test turns."""

from types import SimpleNamespace

import pytest
from experiment_kit.callbacks import SpectralMonitor, Times, times

MONITOR = SpectralMonitor()


@pytest.fixture
def at(monkeypatch):
    """Call a hook of a fresh callback at a time of the clock."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(times.time, "perf_counter", lambda: clock.now)
    timed, trainer = Times(), SimpleNamespace(callbacks=[MONITOR])
    MONITOR.seconds = 0.0

    def call(now: float, hook: str, *batch) -> Times:
        clock.now = now
        getattr(timed, hook)(trainer, None, *batch)
        return timed

    return call


def test_validation_within_an_epoch_and_at_its_end_is_left_out(at) -> None:
    at(10, "on_validation_start")  # the sanity check, before any training
    at(20, "on_train_epoch_start")
    at(21, "on_train_batch_start", None, 0)
    at(25, "on_validation_start")
    at(32, "on_train_batch_start", None, 1)  # 7 s of validation and saving
    at(33, "on_validation_start")
    assert at(53, "on_train_epoch_end").metrics() == {"time/epoch": 33 - 20 - 7}


def test_the_mean_is_of_whole_epochs_of_this_process(at) -> None:
    assert at(5, "on_train_epoch_end").metrics() == {}  # begun by another process
    for start, end in [(10, 14), (20, 28)]:
        at(start, "on_train_epoch_start")
        at(end, "on_train_epoch_end")
    assert at(30, "on_train_epoch_start").metrics() == {"time/epoch": 6.0}


def test_the_monitor_is_left_out(at) -> None:
    MONITOR.seconds = 4.0  # of epochs before
    at(10, "on_train_epoch_start")
    MONITOR.seconds = 7.0
    assert at(20, "on_train_epoch_end").metrics() == {"time/epoch": 7.0}


def test_the_newest_pass_over_the_test_set_counts(at) -> None:
    for start, end in [(0, 9), (10, 12)]:
        at(start, "on_test_start")
        at(end, "on_test_end")
    assert at(20, "on_validation_start").metrics() == {"time/test": 2.0}
