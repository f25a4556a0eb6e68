"""A file that is damaged or hostile costs its own cell, and neither the table nor the page."""

import json

import pytest
from experiment_kit.commands.compare import collect_numbers
from experiment_kit.commands.table import read_measurements
from experiment_kit.pages.records import read_run_record
from experiment_kit.run import Run

from tests.kit.run_results import make_result

LAYER = {"hfc_lfc": 1.2, "token_cosine": 0.3, "effective_rank": 14.2}
SPECTRAL = {"step": 5, "depth": [LAYER] * 3, "response": [[1.0, 0.5]] * 2}


@pytest.fixture
def measured(spec, tmp_path):
    cells = spec.list_cells("small", "validation", [0], ["transformer", "gfsa"], ["heartbeat"])
    runs = {}
    for i, cell in enumerate(cells):
        run = runs[cell.experiment] = Run(tmp_path / f"seed-0-{i:010}")
        run.folder.mkdir()
        (run.folder / "spectral.json").write_text(json.dumps(SPECTRAL))
        (run.folder / "config.yaml").write_text("data: {init_args: {batch_size: 8}}")
        metrics = {"test/accuracy": 0.5}
        run.write_result(make_result(run, cell.experiment, metrics=metrics))
    return cells, runs


def edit_result(run, **fields):
    """Change a result that has no digest, as older ones."""
    path = run.folder / "result.json"
    content = {**json.loads(path.read_text()), **fields}
    del content["digest"]
    path.write_text(json.dumps(content))


BAD = {
    "binary": lambda run: (run.folder / "result.json").write_bytes(b"\xff\0"),
    "nan": lambda run: edit_result(run, metrics={"test/accuracy": float("nan")}),
    "no metric": lambda run: edit_result(run, metrics={"test/loss": 1.0}),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD)
def test_a_bad_result_is_named_and_costs_its_cell(measured, capsys, damage) -> None:
    runs = [*measured[1].values()]
    damage(runs[1])
    assert [line["row"] for line in read_measurements(*measured)] == ["transformer"]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {runs[1].folder / 'result.json'} ")


@pytest.mark.parametrize(("name", "content"), [
    ("spectral.json", b"\xff"), ("spectral.json", b"[1]"), ("config.yaml", b"\xff"),
])  # fmt: skip
def test_another_bad_file_costs_its_numbers_alone(measured, capsys, name, content) -> None:
    folder = next(iter(measured[1].values())).folder
    (folder / name).write_bytes(content)
    numbers = collect_numbers(read_run_record("plain", folder))
    lost = {"spectral.json": {"HFC/LFC", "token cosine"}, "config.yaml": set()}
    assert {"parameters", "accuracy", "HFC/LFC", "token cosine"} - {*lost[name]} <= numbers.keys()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {folder / name} ")
