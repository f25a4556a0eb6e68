"""Tables show the printed rows and columns, share their runs and have the printed units."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.launch.overlays import choose_overlays
from experiment_kit.papers.provenance import read_runs
from experiment_kit.papers.results import CELL, read_results
from experiment_kit.papers.spec import find_spec, load_spec
from experiment_kit.papers.values import load_table

from tests.apps.cases import CASES
from tests.apps.settings import list_values, name_part

RESULTS = Path("docs/results")
PUBLISHED = read_runs(RESULTS)
SPECS = [path for app in list_apps() for path in find_table_specs(app)]


def list_cells(table: str, rows: list[str] | None = None):
    return find_spec(table).list_cells(seeds=[0], rows=rows)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_rows_and_columns_are_printed_and_errors_are_better_the_lower(path: Path) -> None:
    """What no experiment makes is cited, or computed from other columns."""
    spec, paper, app = load_spec(path), load_table(path.stem), path.parts[1]
    rows = [row.key for row in paper.rows]
    columns = [name for name in paper.measurable if paper.columns[name].role != "average"]
    assert {*spec.rows, *spec.cited} == {*rows}
    assert {*spec.columns, *spec.computed} == {*columns}
    if app in ("graph", "sequence", "speech"):
        assert ([*spec.rows], [*spec.columns]) == (rows, columns)
    if app in ("graph", "speech"):
        assert not any(column.higher_is_better for column in paper.columns.values())


@pytest.mark.parametrize(("part", "whole"), [
    ("agf-table-3", "agf-table-14"),
    ("agf-table-6", "agf-table-20"),
    ("gfsa-table-5", "gfsa-table-14"),
    ("gfsa-table-6", "gfsa-table-15"),
])  # fmt: skip
def test_a_table_that_is_part_of_another_shares_its_runs(part: str, whole: str) -> None:
    runs = {(cell.row, cell.column, cell.metric): cell.experiment for cell in list_cells(whole)}
    for cell in list_cells(part):
        assert cell.experiment == runs[cell.row, cell.column, cell.metric]


@pytest.mark.parametrize(("table", "rows", "cells_of_a_run"), [
    ("agf-table-5", ["agf"], 2),  # time and memory
    ("agf-table-21", ["agf"], 2),
    ("gfsa-table-4", ["gfsa-branchformer"], 2),  # two test sets
    ("gfsa-table-6", None, 2),  # two errors
    ("gfsa-table-12", None, 1),  # three depths
    ("record-straight-figure-5", None, 2),  # two errors at each of three depths
    ("attnscale-table-3", None, 2),  # three costs and a training
])  # fmt: skip
def test_columns_that_show_one_run_share_it(table, rows, cells_of_a_run) -> None:
    cells = list_cells(table, rows=rows)
    commands = {tuple(cell.experiment.arguments()) for cell in cells}
    assert len(commands) * cells_of_a_run == len(cells)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_no_two_rows_have_the_same_run_in_every_column(path: Path) -> None:
    """It would be one measurement; a paper may print one experiment in two versions of itself."""
    spec = load_spec(path)
    labels, found = spec.labels, {}
    for key, row in spec.all_rows.items():
        settings = tuple(spec.setting(key, column) for column in spec.columns)
        name = labels[key].partition(", version=")[0]
        assert found.setdefault((row.app, settings), name) == name


def test_a_name_alone_is_an_experiment_of_a_table() -> None:
    """Fine-tuning is asked for, by its recipe."""
    printed = [c.experiment for path in SPECS for c in load_spec(path).list_cells(seeds=[0])]
    found: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for e in (e for e in printed if e.is_trained and not e.args and e.recipe != "cait_finetune"):
        names = e.app, e.data, e.backbone, e.method, e.protocol
        found.setdefault(names, set()).add((e.recipe, e.profile))
    for (app, data, backbone, method, protocol), rows in found.items():
        name = choose_overlays(app, data, protocol, backbone=backbone, method=method)
        assert (name["recipe"], name["profile"]) in rows, (data, backbone, method)


def list_published_runs() -> list[str]:
    """List the first published run with each part of a config, as its data or its filter."""
    lines = pd.concat(read_results(path) for path in sorted(RESULTS.glob("*.csv")))
    runs = [*lines.sort_values("seed").drop_duplicates(CELL)["run"].drop_duplicates()]
    first = {(PUBLISHED[run]["app"], key, str(value)): run for run in reversed(runs)
             for key, value in list_values(PUBLISHED[run]["config"])
             if name_part(f"{key}.") == key}  # fmt: skip
    return [*dict.fromkeys(first.values())]


@pytest.mark.parametrize("run", list_published_runs())
def test_a_published_config_parses_with_its_app_of_today(run: str, tmp_path: Path) -> None:
    app, config = PUBLISHED[run]["app"], PUBLISHED[run]["config"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    (cli,) = (case.cli for case in CASES if case.name == app)
    parsed = cli.subparser.parse_args([f"--config={path}"])
    assert parsed.run.method == config["run"]["method"]
    assert parsed.seed_everything == config["seed_everything"]
