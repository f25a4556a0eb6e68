"""Every table with a spec has a cell that starts on data that ships; one failure stops no other."""

import re
from pathlib import Path

import pytest
from experiment_kit.commands import reproduce
from experiment_kit.commands.reproduce import choose_smoke_run
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import find_data, plan_configs
from experiment_kit.papers.spec import ALL, find_tables
from experiment_kit.run import Run

from tests.kit.run_results import make_result

MAX_WIDTH = 512  # the AGF paper's networks for time series


@pytest.fixture(scope="module")
def specs():
    return find_tables(ALL)


@pytest.fixture(scope="module")
def cells(specs):
    return {spec.table: choose_smoke_run(spec) for spec in specs}


@pytest.fixture(scope="module")
def configs(cells):
    return plan_configs(smoke.cells[0].experiment for smoke in cells.values())


def test_every_table_with_a_spec_has_a_cell_on_data_that_ships(cells) -> None:
    for table, smoke in cells.items():
        for e in filter(None, (smoke.cells[0].experiment.start, smoke.cells[0].experiment)):
            assert e.data != "pile"
            assert isinstance(find_data(e.app, e.data), Path), table
            assert (e.profile, e.seed) == ("smoke", 0)


def test_what_stands_in_is_said_and_what_ships_is_taken_as_it_is(cells) -> None:
    assert cells["agf-table-1"].note == ""
    assert cells["agf-table-1"].cells[0].column == "japanese_vowels"
    glue = cells["gfsa-table-1"]
    assert "ion: docs with bert_tiny stands in for cola with bert_base." in glue.note
    assert (glue.cells[0].row, glue.cells[0].column) == ("softmax-bert_base", "cola")
    experiment = cells["record-straight-figure-6"].cells[0].experiment
    assert (experiment.data, experiment.backbone) == ("docs", "crammed_tiny")
    assert (experiment.start.data, experiment.start.backbone) == ("python_docs", "crammed_tiny")
    assert experiment.start.args


def test_every_cell_is_a_few_steps_of_a_small_network(configs) -> None:
    """The whole of a config is merged: a wrong name in a substitute fails here."""
    for experiment, config in configs.items():
        trainer, model = config["trainer"], config["model"]
        assert trainer["max_epochs"] == 1, experiment
        assert trainer["limit_train_batches"] <= 2, experiment
        assert model.get("weights") is None or experiment.start
        assert model.get("checkpoint") is None
        sizes = re.findall(r"'(?:dim|hidden_size|n_embd)': (\d+)", str(model))
        assert all(int(size) <= MAX_WIDTH for size in sizes)
        assert model.get("backbone", "deit_tiny_patch16_224") == "deit_tiny_patch16_224"


def test_a_dry_run_lists_the_runs_and_makes_nothing(monkeypatch, tmp_path, capsys) -> None:
    plan_without_parsing(monkeypatch)
    reproduce.reproduce_tables(paper="attnscale", folder=str(tmp_path), dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "vision/digits/" in lines[0]
    assert not [*tmp_path.iterdir()]


def test_a_failed_run_stops_no_other_and_is_named(specs, monkeypatch, tmp_path, capsys) -> None:
    plan_without_parsing(monkeypatch)
    failing = "gfsa-table-6"

    def run_some(runs, *_):
        for experiment, run in runs.items():
            run.folder.mkdir(parents=True, exist_ok=True)
            if experiment.recipe == "pcqm4m":
                (run.folder / "log.txt").write_text("starts\nRuntimeError: a bug\n")
            else:
                metrics = {"test/mae": 0.5, "time/epoch": 2.0, "time/test": 1.0}
                run.write_result(make_result(run, experiment, metrics=metrics))
        return 1

    monkeypatch.setattr(reproduce, "run_missing", run_some)
    chosen = [spec for spec in specs if spec.app == "graph"]
    monkeypatch.setattr(reproduce, "find_tables", lambda _: chosen)
    with pytest.raises(UserError, match="1 run did not finish; the others are in the index"):
        reproduce.reproduce_tables(folder=str(tmp_path))
    out, root = capsys.readouterr().out, tmp_path / "reproduce" / "smoke"
    assert f"{failing} has no measured cell" in out
    assert "4 of 6 tables have a measured cell" in out
    text = (root / "index.md").read_text(encoding="utf-8")
    note = "A smoke test of the code path, no reproduction: synthetic with graphormer_slim"
    assert note in text
    assert "| smoke, validation | not comparable: profile smoke is not" in text
    assert note in (root / "tables" / "gfsa-table-5.md").read_text(encoding="utf-8")


def plan_without_parsing(monkeypatch) -> None:
    """Name runs by their experiments, since parsing configs takes seconds."""

    def plan(experiments, folder):
        wanted = [e for found in experiments for e in (found.start, found) if e]
        return {
            e: Run(Path(folder) / e.app / e.data / e.method / f"seed-0-{hash(e) % 16**10:010x}")
            for e in dict.fromkeys(wanted)
        }

    monkeypatch.setattr(reproduce, "plan_runs", plan)
