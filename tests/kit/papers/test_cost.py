"""The plan of tables: cells, runs, what is missing, and the totals."""

import sys
from pathlib import Path

import pytest
from experiment_kit.__main__ import main
from experiment_kit.app_files import list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch.estimate import ACCELERATORS, Estimate, drop_seed
from experiment_kit.launch.overlays import find_overlay, list_overlays, read_settings
from experiment_kit.launch.plan import Experiment
from experiment_kit.launch.run_length import read_sizes
from experiment_kit.papers.cost import Cost, _build_listing, find_tables, plan_tables, sum_costs
from experiment_kit.papers.values import list_tables, load_table
from experiment_kit.run import Run

ONE = ("--columns=[japanese_vowels,heartbeat]", "--rows=[transformer,agf]", "--measure=false")


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
    text = print_plan("agf-table-1", "--accelerator=h100", *ONE)
    assert "12 cells, 12 runs" in text
    # JapaneseVowels is here
    assert "missing data, by make data DATA=<name>: heartbeat\n" in text
    assert "35% of 989 TFLOP/s" in text
    assert "shared with other tables: 6 of agf-table-19, 6 of agf-table-20" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_of_two_tables_costs_once(tmp_path) -> None:
    first = Experiment(app="a", data="d", backbone="b", method="m")
    second, third = (Experiment(app="a", data="d", backbone="b", method=m) for m in "no")
    done = Run(tmp_path / "done")
    done.folder.mkdir()
    (done.folder / "result.json").touch()
    runs = {first: Run(tmp_path / "x"), second: Run(tmp_path / "x"), third: done}
    estimate = Estimate(None, 39e12, 3.0, 70, 5)
    estimates = dict.fromkeys((first, second), estimate)
    found = sum_costs(runs, estimates, ACCELERATORS["a100"], 0.5)
    assert found == Cost(2, 1, here=3.0, device=4.0, memory=70, disk=5)


def test_a_sum_of_what_is_known_is_marked(tmp_path) -> None:
    first, second = (Experiment(app="a", data="d", backbone="b", method=m) for m in "mn")
    estimates = {
        first: Estimate(None, None, 7200.0, None, 2**30),
        second: Estimate(None, None, None, None, None, budget=90),
    }
    runs = {first: Run(tmp_path / "x"), second: Run(tmp_path / "y")}
    device = ACCELERATORS["a100"]
    found = sum_costs(runs, estimates, device, 0.5)
    listing = _build_listing("", ("run", "seeds", "done"), device, [("total", "2", found)])
    shown = [cell for column in listing.columns for cell in column.cells]
    assert shown == ["total", "2", "0", ">2.0 h", "1.0 GiB", ">1.5 min"]


def test_sums_of_nothing_known_are_unknown(tmp_path) -> None:
    one = Experiment(app="a", data="d", backbone="b", method="m")
    unknown = {drop_seed(one): Estimate(None, None, None, None, None)}
    found = sum_costs({one: Run(tmp_path / "x")}, unknown, ACCELERATORS["a100"], 0.5)
    assert found == Cost(1, 0, None, None, None, None, 1, 1)
    assert sum_costs({}, {}, ACCELERATORS["a100"], 0.5) == Cost()


def test_a_paper_is_all_of_its_tables() -> None:
    papers = {load_table(spec.table).paper for spec in find_tables("gfsa")}
    assert papers == {"gfsa"}
    assert [spec.table for spec in find_tables("agf-table-7")] == ["agf-table-7"]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"name": "agf-tabel-1"}, "no table or paper named 'agf-tabel-1' .did you mean agf-table-1"),
    ({"name": "agf", "rows": ["agf"]}, "choose from one table"),
    ({"accelerator": "a10"}, "no accelerator named 'a10' .did you mean a100"),
    ({"utilization": 0.0}, "--utilization=0.0: a share"),
    ({"utilization": 1.5}, "--utilization=1.5: a share"),
    ({"rows": []}, "--rows=.. names none"),
    ({"rows": ["agff"]}, "no row of agf-table-1 to run named 'agff'"),
    ({"seeds": [-1]}, "--seeds: a seed is"),
    ({"protocol": "none"}, "no protocol of agf-table-1 named 'none'"),
])  # fmt: skip
def test_bad_options_are_named(options, sentence, tmp_path) -> None:
    with pytest.raises(UserError, match=sentence):
        plan_tables(**{"name": "agf-table-1", "folder": str(tmp_path)} | options)


def test_documented_sizes_are_of_overlays() -> None:
    for app in list_apps():
        for kind, sizes in read_sizes(app).items():
            assert sizes.keys() <= {*list_overlays(app, kind)}


def test_documented_sizes_are_those_of_the_paper() -> None:
    sizes, compared = read_sizes("sequence")["data"], set()
    for table in (load_table(name) for name in list_tables()):
        if table.quantity == "dataset_statistics":
            for row in table.rows:
                data = row.about["dataset"]
                assert sizes[data]["train"] == row.values["train"], data
                assert sizes[data]["test"] == row.values["test"], data
                compared.add(data)
    assert compared == sizes.keys() - {"text_4k"}


@pytest.mark.parametrize("backbone", sorted(read_sizes("graph")["backbone"]))
def test_weights_of_graphormer_are_those_of_its_config(backbone) -> None:
    path: Path = find_overlay("graph", "backbone", backbone)
    model = read_settings(path.resolve())["model"]
    dim, ffn_dim = model["dim"], model["ffn_dim"]
    weights = model["num_layers"] * (4 * dim**2 + 2 * dim * ffn_dim)
    assert read_sizes("graph")["backbone"][backbone]["weights"] == weights
