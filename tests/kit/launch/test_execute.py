"""From experiments to runs, from runs to processes, and none outlives its launcher."""

import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from experiment_kit.errors import exit_on_signal
from experiment_kit.launch import execute
from experiment_kit.launch.options import LaunchOptions
from experiment_kit.launch.plan import EigenvalueOptions, Experiment, plan_runs
from rich.console import Console

from tests.kit.launch.test_jobs import make_job
from tests.processes import run_allpass


def make_options(folder: Path, console: Console | None = None, **fields) -> LaunchOptions:
    options = LaunchOptions(folder=str(folder), **{"jobs": 2, **fields})
    vars(options)["console"] = console or Console(quiet=True)
    return options


def make_experiment(**fields) -> Experiment:
    first = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "plain"}
    return Experiment(**first | {"profile": "small"} | fields)


def test_a_signal_that_nohup_ignores_stays_ignored(monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exit_on_signal():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("action", "mark", "failures"), [
    ("touch", "done a", 0),
    ("75", "stopped, the same command resumes it a", 1),
    ("3", "exit status 3 a", 1),
    ("0", "ended without result.json, see log.txt a", 1),
])  # fmt: skip
def test_the_end_of_a_job_is_told_by_what_it_left(action, mark, failures, tmp_path) -> None:
    console = Console(record=True, width=200)
    job = make_job(tmp_path, "a", action)
    assert execute.run_with_progress([job], make_options(tmp_path, console), 1) == failures
    assert mark in console.export_text()


def test_what_starts_from_a_failed_run_is_left_out_with_one_sentence(tmp_path) -> None:
    failed, other = make_job(tmp_path, "failed", "3"), make_job(tmp_path, "other", "touch")
    behind = [make_job(tmp_path, name) for name in ("a", "b", "c")]
    jobs = [*(replace(job, needs=failed.output) for job in behind[:2]), failed, other]
    jobs.append(replace(behind[2], needs=other.output))
    console = Console(record=True, width=400)
    assert execute.run_with_progress(jobs, make_options(tmp_path, console), 2) == 3
    text = console.export_text()
    assert "exit status 3 failed" in text
    sentence = f"left out a, b: they start from {tmp_path / 'failed'}, which did not finish"
    assert text.count("left out") == text.count(sentence) == 1
    assert {path.parent.name for path in tmp_path.glob("*/result.json")} == {"other", "c"}


@pytest.fixture
def started(monkeypatch):
    """Collect the jobs of each batch, and let none run."""
    batches = []
    run_jobs = lambda jobs, places, *_: batches.append((len(places.free), jobs))  # noqa: E731
    monkeypatch.setattr(execute, "run_jobs", run_jobs)
    return batches


def test_one_process_makes_a_run_and_costs_are_measured_alone(tmp_path, started) -> None:
    sources = product(("plain", "agf"), ("result", "efficiency"))
    experiments = [make_experiment(method=m, source=s) for m, s in sources]
    runs = plan_runs([*experiments, make_experiment(seed=1)], str(tmp_path))
    assert len({run.folder for run in runs.values()}) == 3
    assert execute.run_missing(runs, make_options(tmp_path)) == 0
    (side_by_side, training), (alone, costs) = started
    assert (side_by_side, alone) == (2, 1)
    assert [job.name for job in costs] == ["efficiency of uea plain", "efficiency of uea agf"]
    names = ["japanese_vowels plain seed 0", "japanese_vowels agf seed 0"]
    assert [job.name for job in training] == [*names, "japanese_vowels plain seed 1"]
    assert all(job.arguments[:3] == ["-m", "attention_sequence", "fit"] for job in training)
    assert {job.log.parent for job in costs} <= {job.log.parent for job in training}

    started.clear()
    for run in runs.values():
        run.write_result({"metrics": {}})
    assert execute.run_missing(runs, make_options(tmp_path)) == 0
    assert [jobs for _, jobs in started] == [costs]


def test_runs_begin_after_those_that_they_start_from(tmp_path, started) -> None:
    pretraining = Experiment(app="nlp", data="python_docs", backbone="crammed_tiny", method="plain")
    tuning = replace(pretraining, data="cb", start=pretraining)
    runs = plan_runs([tuning], str(tmp_path))
    assert [*runs] == [pretraining, tuning]
    console = Console(record=True, width=400)
    assert execute.run_missing(runs, make_options(tmp_path, console)) == 1  # no job is run
    ((_, jobs),) = started
    first, second = (runs[e].folder for e in (pretraining, tuning))
    assert [job.needs for job in jobs] == [None, first / "result.json"]
    assert [f"--model.weights={first}" in job.arguments for job in jobs] == [False, True]
    execute.print_plan(runs, make_options(tmp_path, console))
    assert f"to train: {first}\nto train: {second}, starts from {first}\n" in console.export_text()

    started.clear()
    runs[pretraining].write_result({"metrics": {}})
    execute.run_missing(runs, make_options(tmp_path))
    ((_, (job,)),) = started
    assert job.output == second / "result.json"
    execute.print_plan(runs, make_options(tmp_path, console))
    assert f"finished: {first}\nto train: {second}" in console.export_text()


@pytest.mark.parametrize(("samples", "is_again"), [("all", False), (8, True)])
def test_eigenvalues_are_measured_anew_by_new_options(samples, is_again, tmp_path, started) -> None:
    every = EigenvalueOptions(samples="all", epoch="last")
    runs = plan_runs([make_experiment(source="eigenvalues", eigenvalues=every)], str(tmp_path))
    (run,) = runs.values()
    run.write_result({"metrics": {}})
    report = {"metrics": {}, "options": {"samples": samples, "epoch": "last"}}
    (run.folder / "eigenvalues.json").write_text(json.dumps(report))
    execute.run_missing(runs, make_options(tmp_path))
    arguments = [[*job.arguments[-2:]] for _, jobs in started for job in jobs]
    assert arguments == [["--samples=all", "--epoch=last"]] * is_again


def test_one_method_trains_in_place_with_the_defaults_of_its_app(monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    run_allpass("train", "vision", "--method=plain")
    ((_, *command),) = commands
    assert command[:3] == ["-m", "attention_vision", "fit"]
    overlays = [part for option, part in pairwise(command) if option == "-c"]
    names = ["backbone/deit_tiny", "data/digits", "method/plain", "profile/smoke"]
    assert overlays == ["base", *names]
    assert "--seed_everything=0" in command


def test_the_commands_of_a_plan_are_those_of_its_jobs(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", "/my data")
    first = Experiment(app="nlp", data="python_docs", backbone="crammed_tiny", method="plain")
    runs = plan_runs([first, replace(first, data="cb", start=first)], str(tmp_path))
    execute.print_plan(runs, make_options(tmp_path, dry_run="commands"))
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    jobs = execute.list_training_jobs(runs, str(tmp_path))
    assert lines == [["env", "DATA_DIR=/my data", sys.executable, *j.arguments] for j in jobs]
    assert f"--model.weights={runs[first].folder}" in lines[1]
