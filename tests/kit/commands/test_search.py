"""Searches: the best point of a known function, interruptions, the overlay, and bad input."""

import hashlib
import math
from functools import cache
from pathlib import Path

import pytest
import yaml
from experiment_kit.commands import search as launch
from experiment_kit.launch.options import find_own_options
from experiment_kit.launch.plan import Experiment, plan_configs, plan_runs
from experiment_kit.run import Run

from tests.kit.run_results import make_result
from tests.processes import run_allpass

pytest.importorskip("optuna", reason="optuna, of experiment-kit[search], is not installed")

OWN_OPTIONS = "experiment_kit.launch.options.find_own_options"
GRID = "--grid=model.kernel.K=2,3,4,5 model.kernel.gamma=0.1,0.01,0.001"
NAMES = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "profile": "small"}


class Killed(BaseException):
    """The end of a process that can record nothing."""


class SearchCommand:
    """The command, whose runs are those of a function; it is killed once `left` are trained."""

    def __init__(self, folder) -> None:
        self.folder, self.left = folder, math.inf
        self.trained: list = []
        self.launched: list = []
        self.diverges = False

    def run_missing(self, runs, options):
        self.launched.append((options.make_places, options.jobs))
        for experiment, run in runs.items():
            if run.has_result:
                continue
            if len(self.trained) >= self.left:
                raise Killed
            self.trained.append(run.folder)
            score = math.nan if self.diverges else score_point(experiment)
            run.folder.mkdir(parents=True)
            metrics = {"test/accuracy": 0.5, "val/score": score}
            run.write_result(make_result(run, experiment, metrics=metrics))
        return 0

    def __call__(self, *arguments, folder="my runs"):
        command = ["search", "sequence", "--data=japanese_vowels", "--profile=small"]
        command += [f"--folder={self.folder / folder}", "--methods=[agf]", "--jobs=2"]
        run_allpass(*command, *arguments)

    def find_study(self, folder="my runs"):
        return next((self.folder / folder).glob("sequence/japanese_vowels-uea/search/agf-*/"))


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


plan_config = cache(lambda experiment: plan_configs([experiment]))


@pytest.fixture
def search(monkeypatch, tmp_path):
    command = SearchCommand(tmp_path)
    monkeypatch.setattr(launch, "run_missing", command.run_missing)
    monkeypatch.setattr(launch, "plan_runs", plan_by_arguments)
    monkeypatch.setattr(launch, "plan_configs", lambda experiments: plan_config(*experiments))
    monkeypatch.setattr(OWN_OPTIONS, lambda _, grid: {"agf": grid})
    return command


def test_every_point_is_tried_and_the_best_is_an_overlay(search, monkeypatch, capsys) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(launch, "run_missing", search.run_missing)
    monkeypatch.setattr(OWN_OPTIONS, lambda _, grid: {"agf": grid})
    search(GRID, "--trials=20", "--seeds=[0,1]")
    assert len(search.trained) == len({*search.trained}) == 24
    study = search.find_study()
    text = (study / "chosen.yaml").read_text()
    assert yaml.safe_load(text) == {"model": {"kernel": {"init_args": {"K": 4, "gamma": 0.01}}}}
    shown = capsys.readouterr().out
    assert f"""ARGS="-c '{study / "chosen.yaml"}'\"""" in shown
    chosen = "Chosen: agf K=4 gamma=0.01, val/score 1, the best of 12 trials; seeds 0, 1; protocol"
    assert f"# {chosen} validation." in text
    assert chosen in shown
    args = ("-c", str(study / "chosen.yaml"))
    named = Experiment(method="agf", protocol="validation", args=args, **NAMES)
    (run,) = plan_runs([named], str(search.folder / "my runs")).values()
    assert run.read_result()["metrics"]["val/score"] == 1


def test_trials_may_be_fewer_than_points_and_more_of_them_later(search) -> None:
    search(GRID, "--trials=5")
    first = [*search.trained]
    assert len(first) == 5
    assert [jobs for _, jobs in search.launched] == [2] * 3
    search(GRID, "--trials=5")
    assert search.trained == first
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
    chosen = [search.find_study(f) / "chosen.yaml" for f in ("whole", "my runs")]
    assert chosen[0].read_text() == chosen[1].read_text()


@pytest.mark.parametrize(("arguments", "sentence"), [
    ([GRID, "--select=test/accuracy"], "--select=test/accuracy: a validation metric chooses: val/"),
    ([], "--grid has no option: write model.filter.K=2,3,5, or a file of a grid"),
    (["--methods=[agf,plain]", GRID], "--grid has no option of plain: leave it out of --methods"),
])  # fmt: skip
def test_bad_input_is_one_sentence(search, arguments, sentence, monkeypatch, read_error) -> None:
    monkeypatch.setattr(OWN_OPTIONS, find_own_options)
    assert sentence in read_error(search, *arguments)
    assert not search.trained


def test_failed_trials_are_counted_and_tried_again(search, monkeypatch, read_error, capsys) -> None:
    def run_half(runs, *arguments):
        search.run_missing(dict([*runs.items()][:6]), *arguments)

    monkeypatch.setattr(launch, "run_missing", run_half)
    assert "6 trials have no value: the logs" in read_error(search, GRID, "--trials=12")
    assert "the best of 6 trials" in (search.find_study() / "chosen.yaml").read_text()
    search.diverges = True
    with pytest.raises(SystemExit, match="1"):
        search(GRID, "--trials=2", "--seeds=[1]")
    assert "no trial has a value" in capsys.readouterr().err
    monkeypatch.setattr(launch, "run_missing", search.run_missing)
    search.diverges = False
    search(GRID, "--trials=12")
    assert "the best of 12 trials" in (search.find_study() / "chosen.yaml").read_text()
