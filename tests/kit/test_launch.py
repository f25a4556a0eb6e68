"""From names to command lines, from command lines to processes."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from experiment_kit.__main__ import main
from experiment_kit.launch import commands, pool, work
from experiment_kit.launch.plan import plan
from experiment_kit.tables import load_spec, measure
from rich.console import Console

SPEC = Path("apps/sequence/papers/agf-table-1.yaml")


def test_every_cell_is_a_run_of_its_own() -> None:
    spec = load_spec(SPEC)
    cells = [
        *spec.cells("small", "validation", [0, 1], ["transformer", "agf"], ["japanese_vowels"]),
        *spec.cells("small", "test", [0], ["transformer"], ["japanese_vowels"]),
        *spec.cells("paper", "test", [0], ["transformer"], ["japanese_vowels"]),
    ]
    runs = plan(cells, "somewhere")
    assert len({run.folder for run in runs.values()}) == len(cells)
    assert all(run.folder.parts[0] == "somewhere" for run in runs.values())


def test_what_a_cell_says_itself_wins_over_the_folder_and_not_over_its_seed() -> None:
    cell = load_spec(SPEC).cells("small", "test", [0], ["transformer"], ["japanese_vowels"])[0]
    own = replace(cell, args=(*cell.args, "--run.folder=here", "--seed_everything=5"))
    (run,) = plan([own], "somewhere").values()
    assert run.folder.parts[0] == "here"
    assert run.folder.name.startswith("seed-0-")


def job(tmp_path: Path, name: str, code: str) -> pool.Job:
    return pool.Job(name, ["-c", code], tmp_path / name / "log.txt")


def test_processes_run_side_by_side_and_report_their_status(tmp_path) -> None:
    ended = {}
    jobs = [job(tmp_path, str(n), f"print({n}); raise SystemExit({n})") for n in range(3)]
    pool.run(jobs, 2, lambda job, status: ended.update({job.name: status}))
    assert ended == {"0": 0, "1": 1, "2": 2}
    assert (tmp_path / "2/log.txt").read_text() == "2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
def test_no_process_outlives_a_killed_launcher(tmp_path) -> None:
    code = (
        "from pathlib import Path; from experiment_kit.launch import pool;"
        f"log = Path({str(tmp_path)!r}) / 'log';"
        "pool.run([pool.Job('x', ['-c', 'import time; time.sleep(60)'], log)], 1, print)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code])
    children = wait_for(lambda: psutil.Process(launcher.pid).children())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def wait_for(get, seconds: float = 60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := get():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def test_cells_without_data_are_left_out_and_said_to_be() -> None:
    cells = load_spec(SPEC).cells(
        "small", "test", [0], ["agf"], ["japanese_vowels", "face_detection"]
    )
    console = Console(record=True, width=200)
    assert [cell.data for cell in commands._with_data(cells, console)] == ["japanese_vowels"]
    assert "left out: face_detection: no FaceDetection/" in console.export_text()


SHARED = """
app: sequence
data: japanese_vowels
backbone: uea
columns:
  heartbeat: {metric: test/accuracy, scale: 100}
  pems_sf: {metric: test/loss}
  handwriting: {source: efficiency, metric: parameters}
  japanese_vowels: {source: efficiency, metric: multiply_adds}
rows: {transformer: plain, agf: agf}
protocols: {validation: []}
"""


def test_columns_that_show_one_run_share_it_and_costs_are_measured_alone(tmp_path, monkeypatch):
    path = tmp_path / "agf-table-1.yaml"
    path.write_text(SHARED)
    cells = load_spec(path).cells("small", "validation", [0, 1])
    runs = plan(cells, str(tmp_path))
    assert len({run.folder for run in runs.values()}) == 4
    started = []
    monkeypatch.setattr(pool, "run", lambda jobs, at_once, _: started.append((at_once, jobs)))
    assert work.make(runs, str(tmp_path), 2, Console()) == 0
    (side_by_side, training), (alone, costs) = started
    assert (side_by_side, alone) == (2, 1)
    assert [job.name for job in costs] == ["efficiency of uea plain", "efficiency of uea agf"]
    assert len(training) == 4
    assert all(job.arguments[:3] == ["-m", "attention_sequence", "fit"] for job in training)
    assert all(job.arguments[:2] == ["-m", "attention_sequence.efficiency"] for job in costs)
    assert {job.log.parent for job in costs} <= {job.log.parent for job in training}

    started.clear()
    for run in runs.values():
        run.finish({"metrics": {"test/accuracy": 0.5, "test/loss": 2.0}})
    assert work.make(runs, str(tmp_path), 2, Console()) == 0
    assert [jobs for _, jobs in started] == [costs]
    values = {cell.column: m.value for cell in cells if (m := measure(cell, runs[cell].folder))}
    assert values == {"heartbeat": 50.0, "pems_sf": 2.0}


def test_costs_need_no_data() -> None:
    (cell,) = load_spec(SPEC).cells("small", "test", [0], ["agf"], ["face_detection"])
    cost = replace(cell, source="efficiency")
    assert commands._with_data([cell, cost], Console(quiet=True)) == [cost]


@pytest.mark.parametrize("name", [("--data=jv", "--backbone=uea"), ("jv", "uea")])
def test_what_has_no_default_is_given_by_name_or_by_place(name, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["experiment_kit", "run", "sequence", *name])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no data 'jv' in sequence" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["fit", "predict"])
def test_a_run_is_what_it_is_asked_to_be(action: str, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(commands.os, "execv", lambda _, command: started.append(command))
    names = ["--data=japanese_vowels", "--backbone=uea", f"--action={action}"]
    monkeypatch.setattr(sys, "argv", ["experiment_kit", "run", "sequence", *names])
    main()
    ((_, *command),) = started
    assert command[:3] == ["-m", "attention_sequence", action]
    assert "--seed_everything=0" in command
