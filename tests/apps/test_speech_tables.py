"""Every cell of the speech tables is made of overlays that exist, and tables share their runs."""

from pathlib import Path

import pytest
from experiment_kit.launch import compose
from experiment_kit.launch.plan import plan
from experiment_kit.tables import Cell, load, load_spec

FOLDER = Path("apps/speech/papers")
TABLES = sorted(FOLDER.glob("*.yaml"))


def cells(table: str) -> list[Cell]:
    return load_spec(FOLDER / f"{table}.yaml").cells("paper", "validation", [0])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_printed_row_and_column_is_made_of_overlays_that_exist(path: Path) -> None:
    spec, paper = load_spec(path), load(path.stem)
    assert [*spec.rows] == [row.key for row in paper.rows]
    assert [*spec.columns] == [*paper.columns]
    assert all(compose.of_cell(cell) for cell in cells(path.stem))
    assert not any(column.higher_is_better for column in paper.columns.values())


def test_both_test_sets_are_of_one_run_in_percent() -> None:
    scored = cells("gfsa-table-4")
    assert {cell.scale for cell in scored} == {100.0}
    runs = plan([cell for cell in scored if cell.row == "gfsa-branchformer"])
    assert len({run.folder for run in runs.values()}) == len(runs) / 2 == 2


def test_times_are_those_of_the_runs_that_were_scored() -> None:
    scored = {tuple(compose.of_cell(cell)) for cell in cells("gfsa-table-4")}
    for number in (22, 28):
        assert {tuple(compose.of_cell(cell)) for cell in cells(f"gfsa-table-{number}")} <= scored
