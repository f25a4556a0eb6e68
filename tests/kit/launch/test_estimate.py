"""FLOPs, seconds, memory and disk of runs, counted by hand on tiny models."""

import json
from dataclasses import replace

import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch import sample_cost
from experiment_kit.launch.estimate import (
    ACCELERATORS,
    Estimate,
    count_memory,
    estimate_needs,
    estimate_run,
    estimate_runs,
)
from experiment_kit.launch.jobs import DEFAULT_MEMORY, GIB
from experiment_kit.launch.plan import Experiment
from experiment_kit.launch.run_length import RunLength
from experiment_kit.launch.sample_cost import FILE, SampleCost, count_transformer_macs
from experiment_kit.run import Run

from tests.kit.run_results import make_result

TINY = ("--model.dim=16", "--model.ffn_dim=24", "--model.num_heads=2", "--model.num_layers=1")
EXPERIMENT = Experiment(
    app="sequence", data="japanese_vowels", backbone="uea", method="plain", args=TINY
)
CONFIG = {"trainer": {}, "data": {"init_args": {"batch_size": 5}}, "model": {}}
KNOWN = SampleCost(1100, 200, 0.25, 0.125, 1000.0)


def test_the_cost_of_a_run_is_linear_in_its_samples() -> None:
    found = estimate_run(CONFIG, KNOWN, RunLength(3, 12, 7))
    # a step is three forward passes of 2 x 1100 FLOPs
    assert found.flops == 2 * 1100 * (3 * 12 + 7)
    assert found.seconds == 0.25 * 12 + 0.125 * 7
    assert found.memory == GIB + 16 * 200 + 5 * 1000
    assert found.disk == 28 * 200


def test_what_is_not_known_stays_unknown() -> None:
    found = estimate_run(CONFIG, SampleCost(parameters=200), None)
    assert (found.flops, found.seconds, found.memory) == (None, None, None)
    assert found.disk == 28 * 200
    assert found.predict_seconds(ACCELERATORS["a100"], 0.35) is None
    assert count_memory(CONFIG, SampleCost()) is None


@pytest.mark.parametrize(("precision", "seconds"), [("16-mixed", 2.0), ("32-true", 32.0)])
def test_the_peak_is_that_of_the_precision(precision, seconds) -> None:
    run = Estimate(None, 312e12, None, None, None, precision=precision)
    assert run.predict_seconds(ACCELERATORS["a100"], 0.5) == seconds


def test_a_budget_is_the_time_of_a_run_everywhere() -> None:
    callback = {"class_path": "my.Budget", "init_args": {"time": "2h"}}
    config = CONFIG | {"trainer": {"callbacks": [callback]}}
    found = estimate_run(config, KNOWN, RunLength(3, 12, 7))
    assert found.seconds == found.predict_seconds(ACCELERATORS["v100"], 0.1) == 7200


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure a tiny network in a process; return the folder and what was found."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, estimate_runs({EXPERIMENT: Run(folder / "none")}, str(folder))[EXPERIMENT]


def test_a_step_is_measured_in_a_process(measured) -> None:
    folder, found = measured
    (cost,) = json.loads((folder / FILE).read_text()).values()
    assert min(cost["train_seconds"], cost["score_seconds"], cost["activation_bytes"]) > 0
    assert cost["macs"] > count_transformer_macs(4 * 16**2 + 2 * 16 * 24, 1, 16, 29)
    assert found.length == RunLength(1400, 21_600, 50 * 54 + 370)  # as JapaneseVowels is here
    assert found.seconds == pytest.approx(
        cost["train_seconds"] * 21_600 + cost["score_seconds"] * (50 * 54 + 370)
    )


def test_other_seeds_read_the_cache(measured, monkeypatch) -> None:
    folder, found = measured
    monkeypatch.setattr(sample_cost, "measure_sample", None)
    monkeypatch.setattr(sample_cost, "count_sample", None)
    other = replace(EXPERIMENT, seed=7)
    assert estimate_runs({other: Run(folder / "none")}, str(folder)) == {EXPERIMENT: found}


def test_a_job_needs_what_was_measured(measured, tmp_path) -> None:
    folder, found = measured
    other = replace(EXPERIMENT, seed=3, args=(*TINY, "--model.dim=32"))
    assert estimate_needs([EXPERIMENT, other], str(folder)) == {
        EXPERIMENT: (found.memory, 1),
        other: (DEFAULT_MEMORY, 1),
    }
    assert GIB < found.memory < DEFAULT_MEMORY
    assert estimate_needs([EXPERIMENT], str(tmp_path)) == {EXPERIMENT: (DEFAULT_MEMORY, 1)}


def test_a_run_on_two_devices_has_twice_the_memory_and_the_hours_of_both() -> None:
    callback = {"class_path": "my.Budget", "init_args": {"time": "2h"}}
    config = CONFIG | {"trainer": {"devices": 2, "callbacks": [callback]}}
    found = estimate_run(config, KNOWN, RunLength(3, 12, 7))
    assert found.memory == 2 * (GIB + 16 * 200 + 5 * 1000)
    assert found.seconds == 2 * 7200
    assert found.flops == 2 * 1100 * (3 * 12 + 7)  # of all its samples, on whichever device


def test_a_finished_seed_tells_the_seconds_of_the_others(measured) -> None:
    folder, _ = measured
    run = Run(folder / "sequence/japanese_vowels-uea/plain/seed-0-0123456789")
    run.folder.mkdir(parents=True)
    run.write_result(make_result(run, EXPERIMENT, metrics={"test/accuracy": 1.0}, seconds=12.5))
    runs = {EXPERIMENT: run, replace(EXPERIMENT, seed=1): Run(folder / "none")}
    assert estimate_runs(runs, str(folder))[EXPERIMENT].seconds == 12.5


def test_a_failure_is_tried_again(tmp_path, monkeypatch) -> None:
    answers = iter([UserError("no data here"), KNOWN])

    def count(_):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(sample_cost, "count_sample", count)
    runs = {EXPERIMENT: Run(tmp_path / "none")}
    first = estimate_runs(runs, str(tmp_path), measure=False)[EXPERIMENT]
    assert (first.flops, first.reason) == (None, "no data here")
    second = estimate_runs(runs, str(tmp_path), measure=False)[EXPERIMENT]
    assert (second.disk, second.reason) == (28 * 200, "")
