"""Every cell of the graph tables is made of overlays that exist, and tables share their runs."""

from pathlib import Path

import pytest
from experiment_kit.launch import compose
from experiment_kit.launch.plan import plan
from experiment_kit.tables import Cell, load, load_spec

FOLDER = Path("apps/graph/papers")
TABLES = sorted(FOLDER.glob("*.yaml"))


def cells(table: str, protocol: str = "test") -> list[Cell]:
    return load_spec(FOLDER / f"{table}.yaml").cells("paper", protocol, [0])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_cell_is_made_of_overlays_that_exist(path: Path) -> None:
    for protocol in load_spec(path).protocols:
        assert all(compose.of_cell(cell) for cell in cells(path.stem, protocol))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_printed_row_and_column_is_made(path: Path) -> None:
    spec, paper = load_spec(path), load(path.stem)
    assert [*spec.rows] == [row.key for row in paper.rows]
    assert [*spec.columns] == [*paper.columns]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_less_is_better_and_nothing_is_scaled(path: Path) -> None:
    assert not any(column.higher_is_better for column in load(path.stem).columns.values())
    assert {cell.scale for cell in cells(path.stem)} == {1.0}


@pytest.mark.parametrize(("table", "of"), [(5, 14), (6, 15)])
def test_a_table_shares_its_runs_with_the_one_that_has_deviations(table: int, of: int) -> None:
    made, others = (
        {(c.row, c.column, c.metric): compose.of_cell(c) for c in cells(f"gfsa-table-{number}")}
        for number in (table, of)
    )
    assert made == others


def test_times_are_those_of_the_runs_that_were_scored() -> None:
    scored = {tuple(compose.of_cell(c)) for number in (5, 6) for c in cells(f"gfsa-table-{number}")}
    for number in (21, 27):
        assert {tuple(compose.of_cell(c)) for c in cells(f"gfsa-table-{number}")} <= scored


def test_every_cell_is_a_config_and_both_errors_of_a_row_come_from_one_run() -> None:
    runs = plan(cells("gfsa-table-6"))
    assert 2 * len({run.folder for run in runs.values()}) == len(runs)
