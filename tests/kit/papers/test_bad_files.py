"""A file that is damaged or hostile costs its own cell, and neither the table nor the page."""

import json

import pytest
from experiment_kit.commands import compare as launch
from experiment_kit.commands import table as publish
from experiment_kit.launch.plan import plan_runs
from experiment_kit.pages import run_figures as figures
from experiment_kit.pages.records import read_run_record
from experiment_kit.run import Run
from torch.utils.tensorboard import SummaryWriter

from tests.kit.run_results import make_result

LAYER = {"hfc_lfc": 1.2, "token_cosine": 0.3, "effective_rank": 14.2}
SPECTRAL = {"step": 5, "depth": [LAYER] * 3, "response": [[1.0, 0.5]] * 2}
SETTING = {"profile": "small", "seeds": [0], "rows": ["transformer", "gfsa"]}
SETTING |= {"columns": ["heartbeat"], "train": False}


def finish_run(run, experiment, accuracy=0.5):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "spectral.json").write_text(json.dumps(SPECTRAL))
    (run.folder / "config.yaml").write_text("data: {init_args: {batch_size: 8}}")
    with SummaryWriter(run.folder / "tensorboard") as writer:
        for step in range(3):
            writer.add_scalar("z_run/steps_per_second", 10.0, step)
    run.write_result(make_result(run, experiment, metrics={"test/accuracy": accuracy}))


@pytest.fixture(scope="module")
def planned(spec):
    """Return the runs of two cells, relative to the folder of all runs."""
    cells = spec.list_cells("small", "validation", [0], SETTING["rows"], SETTING["columns"])
    return [cell.experiment for cell in cells], plan_runs([c.experiment for c in cells], ".")


@pytest.fixture
def runs(planned, tmp_path, monkeypatch):
    """Finish two runs in a folder with a space, and let tables and comparisons find them."""
    experiments, found = planned
    root = tmp_path / "my runs"
    runs = {e: Run(root / found[e].folder) for e in experiments}
    for experiment, run in runs.items():
        finish_run(run, experiment)

    def plan(experiments, folder):
        return {e: next(r for x, r in runs.items() if x.method == e.method) for e in experiments}

    monkeypatch.setattr(publish, "plan_runs", plan)
    monkeypatch.setattr(launch, "plan_runs", plan)
    monkeypatch.setattr(launch, "run_missing", lambda *_: 0)
    monkeypatch.setattr(publish, "find_absent_data", lambda _: {})
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(figures, "FIGURES", ())  # drawing takes seconds
    return [*runs.values()]


def make_table(tmp_path):
    """Make the table, and return its lines; one line is a cell."""
    root, out = str(tmp_path / "my runs"), tmp_path / "o u t"
    publish.make_table("agf-table-1", **SETTING, out=str(out), folder=root)
    return (out / "agf-table-1.csv").read_text().splitlines()[1:]


def test_a_folder_with_a_space_gives_one_line_a_run(runs, tmp_path, capsys) -> None:
    for _ in range(2):
        assert [line.split(",")[1] for line in make_table(tmp_path)] == SETTING["rows"]
    assert f"tensorboard --logdir '{tmp_path}/my runs'" in capsys.readouterr().out


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
def test_a_bad_result_is_named_and_costs_its_cell(runs, tmp_path, capsys, damage) -> None:
    damage(runs[1])
    assert [line.split(",")[1] for line in make_table(tmp_path)] == ["transformer"]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {runs[1].folder / 'result.json'} ")


BAD_FILES = [
    ("spectral.json", b"\xff"), ("spectral.json", b"[1]"), ("config.yaml", b"\xff"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), BAD_FILES)
def test_another_bad_file_costs_its_numbers_alone(runs, capsys, name, content) -> None:
    (runs[0].folder / name).write_bytes(content)
    numbers = launch.collect_numbers(read_run_record("plain", runs[0].folder))
    lost = {"spectral.json": {"HFC/LFC", "token cosine"}, "config.yaml": {"samples/s"}}
    kept = {"parameters", "accuracy", "samples/s", "HFC/LFC", "token cosine"} - {*lost[name]}
    assert kept <= numbers.keys()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {runs[0].folder / name} ")


def test_runs_of_other_layers_are_not_averaged(runs, capsys) -> None:
    records = [read_run_record("plain", run.folder) for run in runs]
    records[1].spectral["depth"].pop()
    assert len(figures._list_alike(records, "depth")) == 1
    assert "1 runs of plain are left out of a figure" in capsys.readouterr().err
