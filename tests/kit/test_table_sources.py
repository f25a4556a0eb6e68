"""Cells of several sources and of several apps: which runs make them, and in which order."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_kit import tables
from experiment_kit.launch import commands, pool, work
from experiment_kit.launch.plan import plan
from rich.console import Console

TWO_APPS = """
app: vision
data: digits
backbone: vit_tiny
source: eigenvalues
scale: 100
columns: {lambda_n_a: {metric: smoothing_share}, lambda_1_a: {metric: sharpening_share}}
rows:
  vit_ti: plain
  crammed_bert: {app: sequence, data: japanese_vowels, backbone: uea, method: plain}
protocols: {validation: []}
"""


@pytest.fixture
def cells(tmp_path):
    path = tmp_path / "record-straight-table-1.yaml"
    path.write_text(TWO_APPS)
    return tables.load_spec(path).cells("paper", "validation", [0])


def test_a_row_may_be_of_another_app_than_its_table(cells):
    runs = plan(cells, "somewhere")
    assert [cell.app for cell in cells] == ["vision", "vision", "sequence", "sequence"]
    folders = [run.folder.parts[1:3] for run in runs.values()]
    assert folders[::2] == [("vision", "digits-vit_tiny"), ("sequence", "japanese_vowels-uea")]
    assert folders[::2] == folders[1::2]


def test_eigenvalues_are_measured_once_the_model_is_trained(cells, tmp_path, monkeypatch):
    runs, started = plan(cells, str(tmp_path)), []

    def train(jobs, at_once, ended):
        started.append([" ".join(job.arguments[:3]) for job in jobs])
        if len(started) == 1:  # the sequence app's training fails
            next(iter(runs.values())).finish({"metrics": {}})

    monkeypatch.setattr(pool, "run", train)
    work.make(runs, str(tmp_path), 2, Console(quiet=True))
    trained = ["-m attention_vision fit", "-m attention_sequence fit"]
    assert started == [trained, ["-m experiment_kit.eigenvalues vision"]]

    for run in runs.values():
        run.finish({"metrics": {}})
        content = {"metrics": {"smoothing_share": 0.75, "sharpening_share": 0.25}}
        (run.folder / "eigenvalues.json").write_text(json.dumps(content))
    started.clear()
    work.make(runs, str(tmp_path), 2, Console(quiet=True))
    assert started == []
    values = [tables.measure(cell, run.folder).value for cell, run in runs.items()]
    assert values == [75, 25, 75, 25]


def test_a_trained_model_needs_data_and_a_seed_of_its_own(cells, spec):
    absent = [replace(cell, data="cifar100") for cell in cells[:1]]
    assert commands._with_data(absent, Console(quiet=True)) == []
    (cell,) = spec.cells("paper", "test", [0], ["agf"], ["heartbeat"])
    assert cell.trained
    assert replace(cell, source="eigenvalues").trained
    assert not replace(cell, source="efficiency").trained


def test_a_table_may_show_how_long_training_took(spec, tmp_path):
    (cell,) = spec.cells("paper", "test", [0], ["agf"], ["heartbeat"])
    (tmp_path / "result.json").write_text('{"metrics": {"time/epoch": 1.5, "time/test": 0.5}}')
    seconds = replace(cell, metric="time/epoch", scale=1.0)
    assert tables.measure(seconds, tmp_path).value == 1.5


def test_the_shares_of_the_paper_are_made_of_both_apps():
    path = Path("apps/vision/papers/record-straight-table-1.yaml")
    spec, paper = tables.load_spec(path), tables.load(path.stem)
    assert {*spec.rows} == {row.key for row in paper.rows}
    cells = spec.cells("paper", "validation", [0])
    assert {(cell.app, cell.source, cell.scale) for cell in cells} == {
        ("vision", "eigenvalues", 100),
        ("nlp", "eigenvalues", 100),
    }
