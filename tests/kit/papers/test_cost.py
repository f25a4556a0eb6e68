"""FLOPs of a run are those of its model and its samples."""

import json

import pytest
from experiment_kit.launch.plan import Experiment, plan_configs
from experiment_kit.papers.cost import count_sample_macs, count_trained_samples, find_flops
from rich.console import Console

SERIES = Experiment(app="sequence", data="japanese_vowels", backbone="uea", method="gfsa")


@pytest.fixture(scope="module")
def config():
    return plan_configs([SERIES])[SERIES]


def test_the_flops_of_a_run_are_those_of_its_samples(config, tmp_path) -> None:
    samples = count_trained_samples(SERIES, config)
    assert samples == 270 * config["trainer"]["max_epochs"]
    macs = count_sample_macs("sequence", config)
    assert macs > 0
    found = find_flops({SERIES: config}, tmp_path, Console(quiet=True))
    assert found == {SERIES: 6.0 * macs * samples}
    (name,) = json.loads((tmp_path / "macs.json").read_text())
    assert name.startswith("sequence ")
    assert find_flops({SERIES: config}, tmp_path / "macs.json", Console(quiet=True)) == found


@pytest.mark.parametrize(("trainer", "samples"), [
    ({"max_epochs": 4, "max_steps": 5}, 160),
    ({"max_epochs": 4, "limit_train_batches": 0.5}, 540),
    ({"max_epochs": 4, "limit_train_batches": 2}, 256),
    ({"max_steps": 5, "accumulate_grad_batches": 3}, 480),
])  # fmt: skip
def test_samples_of_a_run_are_bounded_by_epochs_or_steps(trainer, samples) -> None:
    config = {"trainer": trainer, "data": {"init_args": {"batch_size": 32}}}
    assert count_trained_samples(SERIES, config) == samples
