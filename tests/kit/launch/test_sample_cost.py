"""Multiply-adds of a tiny model by hand; measurements that fail, and caches that are damaged."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch import sample_cost
from experiment_kit.launch.plan import Experiment
from experiment_kit.launch.sample_cost import (
    FILE,
    SampleCost,
    SampleCosts,
    count_sample,
    count_transformer_macs,
    list_missing_files,
    measure_sample,
)

from tests.kit.tiny import APP, DIM, LENGTH, arguments


def test_multiply_adds_of_a_tiny_model(tmp_path) -> None:
    cost = count_sample(AppCLI(APP, ["fit", *arguments(tmp_path)]))
    # two layers of 4 products by (4, 4) for 5 tokens, and 2 products of (5, 5); a head of 3 classes
    layers, head = 2 * (4 * DIM**2 * LENGTH + 2 * LENGTH**2 * DIM), LENGTH * DIM * 3
    assert cost.macs == layers + head == 1100
    assert count_transformer_macs(2 * 4 * DIM**2, 2, DIM, LENGTH) == layers


def test_a_failed_measurement_leaves_its_reason(monkeypatch) -> None:
    monkeypatch.setattr(sample_cost, "_run_measurement", lambda *_: "no weights here")
    experiment = Experiment(app="sequence", data="japanese_vowels", backbone="uea", method="plain")
    config = {"data": {"init_args": {"batch_size": 5}}, "model": {}}
    found = measure_sample(experiment, config, SampleCost(macs=3))
    assert found == SampleCost(macs=3, reason="no weights here")


def test_a_step_is_measured_on_the_threads_of_a_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code = "import os; print('threads', os.environ['OMP_NUM_THREADS'])"
    assert sample_cost._run_measurement(["-c", code], str(tmp_path)) == "threads 3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(sample_cost, "count_threads", lambda: 5)
    assert sample_cost._run_measurement(["-c", code], str(tmp_path)) == "threads 5"


def test_a_file_of_weights_that_is_not_here_is_named(tmp_path) -> None:
    app = replace(APP, hashed_files=("model.checkpoint", "model.weights"))
    config = {"model": {"checkpoint": "absent.pth", "weights": "hub/name"}}
    assert list_missing_files(app, config) == {"model.checkpoint": "absent.pth"}
    here = tmp_path / "here.pth"
    here.touch()
    assert not list_missing_files(app, {"model": {"checkpoint": str(here)}})


@pytest.mark.parametrize("content", ['{"a": {"flops": 3}}', '{"a": 3}', "[1]", "{"])
def test_a_damaged_cache_is_named(tmp_path: Path, content) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError, match=f"{FILE}.*delete it to measure again"):
        SampleCosts(tmp_path, measure=False)
