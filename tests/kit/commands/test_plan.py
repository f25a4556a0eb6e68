"""The plan of tables: cells, runs, what is missing, FLOPs and the totals."""

import json
import sys

import pytest
from experiment_kit.__main__ import main
from experiment_kit.commands.plan import (
    count_sample_macs,
    count_trained_samples,
    find_flops,
    make_seedless,
)
from experiment_kit.launch.plan import Experiment, plan_configs_and_runs
from rich.console import Console

ONE = ("--columns=[japanese_vowels,heartbeat]", "--rows=[transformer,agf]")
SERIES = Experiment(app="sequence", data="japanese_vowels", backbone="uea", method="plain")


@pytest.fixture
def print_plan(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("DATA_DIR", raising=False)

    def run(*arguments: str) -> str:
        line = ["experiment_kit", "plan", *arguments, f"--folder={tmp_path}"]
        monkeypatch.setattr(sys, "argv", line)
        main()
        return capsys.readouterr().out

    return run


def test_the_plan_of_a_table_fits_a_terminal(print_plan) -> None:
    text = print_plan("agf-table-1", *ONE)
    assert "12 cells, 12 runs" in text
    # JapaneseVowels is here
    assert "missing data, by make data DATA=<name>: heartbeat\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert print_plan("agf-table-1", *ONE) == text  # from the counts that are kept


def test_the_flops_of_a_run_are_those_of_its_samples(tmp_path) -> None:
    planned = plan_configs_and_runs([SERIES], str(tmp_path))
    ((config, _),) = planned.values()
    samples = count_trained_samples(SERIES, config)
    assert samples == 270 * config["trainer"]["max_epochs"]
    macs = count_sample_macs("sequence", config)
    assert macs is not None
    assert macs > 0
    found = find_flops(planned, tmp_path, Console(quiet=True))
    assert found[make_seedless(SERIES)] == 6.0 * macs * samples
    (name,) = json.loads((tmp_path / "macs.json").read_text())
    assert name.startswith("sequence ")


@pytest.mark.parametrize(("trainer", "samples"), [
    ({"max_epochs": 4}, 1080),
    ({"max_epochs": -1, "max_steps": 5}, 160),
    ({"max_epochs": 4, "max_steps": 5}, 160),
    ({"max_epochs": 4, "limit_train_batches": 0.5}, 540),
    ({"max_epochs": 4, "limit_train_batches": 2}, 256),
    ({"max_steps": 5, "accumulate_grad_batches": 3}, 480),
])  # fmt: skip
def test_samples_of_a_run_are_bounded_by_epochs_or_steps(trainer, samples) -> None:
    config = {"trainer": trainer, "data": {"init_args": {"batch_size": 32}}}
    assert count_trained_samples(SERIES, config) == samples


def test_papers_are_planned_table_by_table(print_plan) -> None:
    text = print_plan("record_straight", "--seeds=[0]")
    assert "record-straight-table-1" in text
    assert "in all" in text


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("agf-table-99",), "There is no table or paper named 'agf-table-99' (did you mean"),
    (("agf", "--rows=[agf]"), "--rows and --columns choose from one table: name it"),
    (("agf-table-1", "--seeds=[-1]"), "--seeds: "),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, monkeypatch, read_error, tmp_path) -> None:
    monkeypatch.setattr(sys, "argv", ["experiment_kit", "plan", *arguments])
    monkeypatch.chdir(tmp_path)
    assert sentence in read_error(main)
