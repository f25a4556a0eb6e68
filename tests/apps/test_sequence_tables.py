"""Every cell of the sequence tables is made of overlays that exist, at the sizes that are said."""

from pathlib import Path

import pytest
import yaml
from experiment_kit.launch import compose
from experiment_kit.launch.plan import plan
from experiment_kit.tables import Cell, load, load_spec

FOLDER = Path("apps/sequence/papers")
TABLES = sorted(FOLDER.glob("*.yaml"))


def cells(table: str, rows: list[str] | None = None) -> list[Cell]:
    spec = load_spec(FOLDER / f"{table}.yaml")
    return spec.cells("paper", next(iter(spec.protocols)), [0], rows)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_cell_is_made_of_overlays_that_exist(path: Path) -> None:
    for cell in cells(path.stem):
        assert compose.of_cell(cell)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_printed_row_and_column_is_made(path: Path) -> None:
    spec, paper = load_spec(path), load(path.stem)
    assert [*spec.rows] == [row.key for row in paper.rows]
    assert [*spec.columns] == [c for c in paper.columns if c not in paper.averages]


@pytest.mark.parametrize(
    ("table", "of"), [("agf-table-3", "agf-table-14"), ("agf-table-6", "agf-table-20")]
)
def test_a_table_that_is_part_of_another_shares_its_runs(table: str, of: str) -> None:
    made = {(cell.row, cell.column): compose.of_cell(cell) for cell in cells(of)}
    for cell in cells(table):
        assert compose.of_cell(cell) == made[cell.row, cell.column]


def test_a_tables_arguments_win_over_the_settings_of_a_data_set() -> None:
    path = compose.APPS / "sequence/configs/method/agf.per_dataset.yaml"
    tuned = yaml.safe_load(path.read_text())["model.kernel.init_args"]["heartbeat"]
    spec = load_spec(FOLDER / "agf-table-14.yaml")
    (cell,) = spec.cells("paper", "validation", [0], ["agf-9"], ["heartbeat"])
    arguments = compose.of_cell(cell)
    ours, theirs = (f"--model.kernel.init_args.K={K}" for K in (9, tuned["K"]))
    assert arguments.index(theirs) < arguments.index(ours)


def test_a_time_of_table_21_is_of_the_training_samples_of_table_9() -> None:
    spec, sizes = load_spec(FOLDER / "agf-table-21.yaml"), load("agf-table-9")
    for row in sizes.rows:
        assert spec.setting("agf", f"{row.key}_time").scale == row.values["train"]


def test_a_time_of_table_5_is_of_the_samples_of_a_thousand_steps() -> None:
    spec = load_spec(FOLDER / "agf-table-5.yaml")
    for column in (name for name in spec.columns if name.endswith("_time")):
        setting = spec.setting("agf", column)
        path = compose.APPS / f"sequence/configs/data/{setting.data}.yaml"
        batch = yaml.safe_load(path.read_text())["data"]["init_args"]["batch_size"]
        assert setting.scale == 1000 * batch


@pytest.mark.parametrize("table", ["agf-table-5", "agf-table-21"])
def test_time_and_memory_come_from_one_run(table: str) -> None:
    runs = plan(cells(table, ["agf"]))
    assert 2 * len({run.folder for run in runs.values()}) == len(runs)
