"""Searches: the best point of a known function, interruptions, the overlay, and bad input."""

import hashlib
import math
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from experiment_kit.__main__ import main
from experiment_kit.commands import search as launch
from experiment_kit.commands import search_page
from experiment_kit.commands.search_page import write_search_page
from experiment_kit.launch import lease as leases
from experiment_kit.launch.grid import check_grid, find_own_options
from experiment_kit.launch.lease import find_lease, is_held, take_lease
from experiment_kit.launch.plan import Experiment, plan_configs, plan_runs
from experiment_kit.run import Run

from tests.kit.run_results import make_result

pytest.importorskip("optuna", reason="optuna, of allpass-kit[search], is not installed")

GRID = "--grid=model.kernel.K=2,3,4,5 model.kernel.gamma=0.1,0.01,0.001"
NAMES = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "profile": "small"}
AGF = Experiment(method="agf", protocol="validation", **NAMES)


class Killed(BaseException):
    """The end of a process that can record nothing."""


class SearchCommand:
    """The command, whose runs are those of a function; it is killed once `left` are trained."""

    def __init__(self, folder) -> None:
        self.folder, self.left = folder, math.inf
        self.trained: list = []
        self.metrics: dict = {}
        self.launched: list = []

    def run_missing(self, runs, folder, jobs, console, launch):
        self.launched.append((launch, jobs))
        for experiment, run in runs.items():
            if run.has_result:
                continue
            if len(self.trained) >= self.left:
                raise Killed
            self.trained.append(run.folder)
            metrics = {"test/accuracy": 0.5, "val/score": score_point(experiment)}
            run.folder.mkdir(parents=True)
            run.write_result(make_result(run, experiment, metrics=self.metrics or metrics))
        return 0

    def __call__(self, *arguments, folder="runs"):
        command = ["search", "sequence", "--data=japanese_vowels", "--profile=small"]
        command += [f"--folder={self.folder / folder}", "--methods=[agf]", "--jobs=2"]
        sys.argv = ["experiment_kit", *command, *arguments]
        main()

    def find_study(self, folder="runs"):
        found = (self.folder / folder).glob("sequence/japanese_vowels-uea/search/agf-*/")
        return next(found)


def score_point(experiment: Experiment) -> float:
    """Return a quadratic function of log gamma and K, whose maximum is 1 at K = 4, 0.01."""
    point = dict(argument.split("=") for argument in experiment.args)
    K, gamma = int(point["--model.kernel.K"]), float(point["--model.kernel.gamma"])
    return 1 - (K - 4) ** 2 / 16 - (math.log10(gamma) + 2) ** 2 / 4


def plan_by_arguments(experiments, folder) -> dict[Experiment, Run]:
    """Name runs by their arguments, which takes no parser."""
    parent = Path(folder) / "sequence/japanese_vowels-uea/agf"
    digests = {e: hashlib.sha256(repr(e.args).encode()).hexdigest()[:10] for e in experiments}
    return {e: Run(parent / f"seed-{e.seed}-{digests[e]}") for e in experiments}


@cache
def plan_config(experiment: Experiment):
    return plan_configs([experiment])


@pytest.fixture
def search(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("COLUMNS", "200")
    command = SearchCommand(tmp_path)
    monkeypatch.setattr(launch, "run_missing", command.run_missing)
    monkeypatch.setattr(launch, "plan_runs", plan_by_arguments)
    monkeypatch.setattr(launch, "plan_configs", lambda experiments: plan_config(*experiments))
    monkeypatch.setattr(launch, "find_own_options", lambda _, grid: {"agf": grid})
    monkeypatch.setattr(launch, "check_grid", lambda *_: None)
    monkeypatch.setattr(search_page, "write_search_page", lambda *_: None)
    return command


def test_every_point_of_a_grid_is_tried_and_the_best_is_an_overlay(search, capsys) -> None:
    search(GRID, "--trials=12")
    assert len(search.trained) == len({*search.trained}) == 12
    shown = capsys.readouterr().out
    assert "12 of 12 points, all of the grid; val/score on the validation split" in shown
    text = (search.find_study() / "chosen.yaml").read_text()
    assert yaml.safe_load(text) == {"model": {"kernel": {"init_args": {"K": 4, "gamma": 0.01}}}}
    name = search.find_study().name
    assert f"# study {name} of agf, japanese_vowels, uea, small, validation" in text
    chosen = "Chosen: K=4, gamma=0.01, val/score 1, the highest of 12 trials; seeds 0; measured on"
    assert f"# {chosen} the validation split." in text
    assert chosen in shown


def test_the_page_has_the_choice_the_trials_and_the_figures(search, monkeypatch) -> None:
    monkeypatch.setattr(search_page, "write_search_page", write_search_page)
    search(GRID, "--trials=12")
    page = search.find_study() / "search.html"
    text = page.read_text()
    assert "Chosen: K=4, gamma=0.01, val/score 1, the highest of 12 trials" in text
    assert "measured on the validation split" in text
    assert "<strong>1</strong>" in text
    assert text.count("<tr>") == 1 + 12
    assert text.count('role="img"') == 2 + 1  # a slice of each option, and the importances
    for part in ("make search APP=sequence GRID=", "METHODS=agf SEEDS=0", "TRIALS=12 SELECT=val/"):
        assert part in text
    assert "https://" not in text


def test_the_overlay_makes_the_run_of_the_chosen_point(search, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(launch, "plan_runs", plan_runs)
    search("--grid=model.kernel.K=3,4 model.kernel.gamma=0.01", "--trials=2")
    args = ("-c", str(search.find_study() / "chosen.yaml"))
    named = Experiment(method="agf", protocol="validation", args=args, **NAMES)
    (run,) = plan_runs([named], str(tmp_path / "runs")).values()
    assert run.read_result()["metrics"]["val/score"] == 1


def test_trials_may_be_fewer_than_points_and_more_of_them_later(search) -> None:
    search(GRID, "--trials=5")
    first = [*search.trained]
    assert len(first) == 5
    search(GRID, "--trials=5")
    assert search.trained == first
    search(GRID, "--trials=11")
    assert search.trained[:5] == first
    assert len({*search.trained}) == 11
    search(GRID, "--trials=40")
    assert len(search.trained) == len({*search.trained}) == 12


@pytest.mark.parametrize("trials", [11, 12])
def test_a_killed_search_goes_on_as_if_it_had_not_been(search, trials) -> None:
    search(GRID, f"--trials={trials}", folder="whole")
    whole = [folder.name for folder in search.trained]
    search.trained = []
    for left in (1, 4):  # in the middle of a batch, and at its end
        search.left = left
        with pytest.raises(Killed):
            search(GRID, f"--trials={trials}")
    search.left = math.inf
    search(GRID, f"--trials={trials}")
    assert [folder.name for folder in search.trained] == whole
    chosen = [search.find_study(f) / "chosen.yaml" for f in ("whole", "runs")]
    assert chosen[0].read_text() == chosen[1].read_text()


def test_a_split_that_is_the_test_split_is_stated(search, monkeypatch, capsys) -> None:
    monkeypatch.setattr(search_page, "write_search_page", write_search_page)
    search(GRID, "--trials=2", "--protocol=test")
    sentence = "on the split of data.protocol=test, which is the test split of most data sets"
    assert sentence in capsys.readouterr().out
    assert sentence in (search.find_study() / "search.html").read_text()
    assert sentence in (search.find_study() / "chosen.yaml").read_text()


def test_the_value_of_a_trial_is_the_mean_over_seeds(search) -> None:
    search(GRID, "--trials=2", "--seeds=[0,1]")
    assert len(search.trained) == 4
    assert "seeds 0, 1;" in (search.find_study() / "chosen.yaml").read_text()


@pytest.mark.parametrize(("arguments", "sentence"), [
    ([GRID, "--select=test/accuracy"],
     "--select=test/accuracy is measured on test samples, which must not choose: select by val/"),
    ([GRID, "--select=last/accuracy"], "is measured on test samples"),
    ([GRID, "--select=val/f1"], "--select=val/f1: results of sequence have val/score"),
    ([], "--grid has no option: write model.filter.K=2,3,5, or a file of a grid"),
    (["--grid=model.kernel.K="], "--grid: model.kernel.K has an empty value"),
    (["--grid=model.kernel.K=2,x"], "--grid: agf K=x: model.kernel.K: expected int, got x"),
    ([GRID, "--trials=0"], "--trials=0: expected a number from 1 to"),
    (["--methods=[agf,plain]", GRID], "--grid has no option of plain: leave it out of --methods"),
])  # fmt: skip
def test_bad_input_is_one_sentence_before_anything_trains(
    search, arguments, sentence, monkeypatch, read_error
) -> None:
    monkeypatch.setattr(launch, "find_own_options", find_own_options)
    monkeypatch.setattr(launch, "check_grid", check_grid)
    assert sentence in read_error(search, *arguments)
    assert not search.trained


def test_a_result_without_the_metric_is_named_with_what_it_has(search, read_error) -> None:
    search.metrics = {"test/accuracy": 0.5, "test/loss": 1.0}
    line = read_error(search, GRID, "--trials=2")
    assert "--select=val/score: " in line
    assert "result.json has test/accuracy, test/loss" in line


def test_failed_trials_are_counted_and_end_with_an_error(search, monkeypatch, read_error) -> None:
    def run_half(runs, *arguments):
        search.run_missing(dict([*runs.items()][:6]), *arguments)

    monkeypatch.setattr(launch, "run_missing", run_half)
    assert "6 trials have no value: the logs" in read_error(search, GRID, "--trials=12")
    text = (search.find_study() / "chosen.yaml").read_text()
    assert "the highest of 6 trials" in text
    assert "; 6 trials failed; seeds 0;" in text


def test_trials_without_a_number_are_failures_that_are_tried_again(search, read_error) -> None:
    search.metrics = {"val/score": math.nan}
    assert "no trial of the search has a value" in read_error(search, GRID, "--trials=2")
    for folder in search.trained:
        (folder / "result.json").unlink()
        folder.rmdir()
    failed, search.trained, search.metrics = {*search.trained}, [], {}
    search(GRID, "--trials=2")
    assert {*search.trained} == failed


def test_a_damaged_journal_is_one_sentence_and_a_cut_line_is_dropped(search, read_error) -> None:
    search(GRID, "--trials=3")
    journal = search.find_study().with_suffix(".journal")
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "work')
    search(GRID, "--trials=3")
    assert len(search.trained) == 3
    journal.write_bytes(whole.replace(b"op_code", b"op", 1))
    line = read_error(search, GRID, "--trials=3")
    assert f"{journal} is damaged (KeyError: 'op_code'): move it away to begin anew" in line
    journal.write_bytes(b"no journal\n" * 2)
    assert "is damaged" in read_error(search, GRID, "--trials=3")


def test_a_search_without_optuna_names_what_installs_it(search, monkeypatch, read_error) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "a search needs Optuna: pip install 'allpass-kit[search]'" in read_error(search, GRID)


def test_a_launcher_runs_the_trials_and_its_jobs_decide_the_batches(search, monkeypatch) -> None:
    chosen = []
    monkeypatch.setattr(
        launch, "choose_launcher", lambda *options: chosen.append(options) or "machines"
    )
    search(GRID, "--trials=12", "--launcher=ray", "--address=head:1", "--jobs=0")
    assert chosen == [("ray", "head:1", str(search.folder / "runs"))]
    assert search.launched == [("machines", 0)]  # all at once, on all places
    search(GRID, "--trials=12", "--jobs=0")
    assert chosen[1] == ("local", "", str(search.folder / "runs"))
    assert len(search.trained) == 12
    search(GRID, "--trials=5", "--launcher=slurm", "--jobs=3", folder="few")
    assert search.launched[1:] == [("machines", 3)] * 2
    assert len(search.trained) == 12 + 5


def test_a_number_at_a_time_must_be_named_for_machines_that_come_and_go(search, read_error) -> None:
    line = read_error(search, GRID, "--trials=5", "--launcher=ray", "--jobs=0")
    assert "--launcher=ray needs --jobs for fewer trials than points, which depend on how" in line
    assert not search.trained


def test_a_second_launcher_waits_for_the_study_and_repeats_nothing(
    search, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(launch, "choose_launcher", lambda *_: "machines")
    search(GRID, "--trials=2", "--launcher=ray")
    first, study = [*search.trained], search.find_study()
    other = take_lease(study)  # of a launcher on another machine, which no lock keeps out
    assert other

    def finish() -> None:
        search.trained.clear()  # nothing was trained until now
        other.renew(released=True)

    monkeypatch.setattr(leases.time, "sleep", lambda _: finish())
    search(GRID, "--trials=4", "--launcher=ray")
    assert f"waiting for the launcher that has {study}" in capsys.readouterr().err
    assert len(search.trained) == 2
    assert not {*search.trained} & {*first}
    assert not is_held(study)


def test_a_launcher_that_lost_its_study_writes_nothing_more(
    search, monkeypatch, read_error
) -> None:
    monkeypatch.setattr(launch, "choose_launcher", lambda *_: "machines")
    search(GRID, "--trials=2", "--launcher=ray")
    journal, run_missing = search.find_study().with_suffix(".journal"), search.run_missing
    before = []

    def lose_study(*arguments) -> None:
        run_missing(*arguments)
        find_lease(search.find_study()).rename(search.find_study() / "lease.9")
        monkeypatch.setattr(leases.Lease, "is_lost", True)
        before.append(journal.read_bytes())

    monkeypatch.setattr(launch, "run_missing", lose_study)
    line = read_error(search, GRID, "--trials=4", "--launcher=ray")
    assert f"another launcher may have {search.find_study()} now" in line
    assert journal.read_bytes() == before[0]
