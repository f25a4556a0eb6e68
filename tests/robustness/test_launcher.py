"""`python -m experiment_kit table` that is interrupted: real processes, and none that is left."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from experiment_kit.launch.jobs import read_last_line

from tests.processes import HUNG, list_session, start_python, wait_for_end
from tests.robustness.child import ROOT
from tests.robustness.compare_runs import compare_runs

TABLE = "agf-table-1"
COMMAND = (
    *("-m", "experiment_kit", "table", TABLE, "--profile=smoke", "--seeds=[0]"),
    *("--rows=[transformer,gfsa]", "--columns=[japanese_vowels]"),
    *("--folder=out", "--out=results"),
)
MOMENTS = {  # the moment has come when such a file is there
    "planning": "apps",
    "cells start": "out/**/log.txt",
    "cells train": "out/**/environment.yaml",
    "a checkpoint is there": "out/**/checkpoints/step=*.ckpt",
    "a cell ends": "out/**/result.json",
}
TRAIN, THREE = ("cells train",), ("cells train", "a checkpoint is there", "a cell ends")
CASES = [  # signal, the moments of one start each, who receives it
    *(("KILL", (moment,), "launcher") for moment in MOMENTS),
    ("KILL", THREE, "launcher"),
    *((name, TRAIN, "launcher") for name in ("TERM", "INT", "HUP")),
    *(("TERM", (moment,), "launcher") for moment in ("planning", "a cell ends")),
    ("INT", TRAIN, "group"),
    *((name, TRAIN, "cell") for name in ("KILL", "TERM")),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a table that nothing interrupted."""
    folder = make_folder(tmp_path_factory.mktemp("whole"))
    make_table(folder)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path)


def make_folder(folder: Path) -> Path:
    (folder / "apps").symlink_to(ROOT / "apps")
    return folder


def start_launcher(folder: Path, jobs: int = 2) -> AbstractContextManager[BaseProcess]:
    command = (*COMMAND, f"--jobs={jobs}")
    # the launcher chooses the threads, as for a user
    return start_python(command, folder / "log.txt", folder, OMP_NUM_THREADS="")


def make_table(folder: Path, jobs: Sequence[int] = (2,)) -> None:
    with ExitStack() as stack:
        for process in [stack.enter_context(start_launcher(folder, n)) for n in jobs]:
            assert wait_for_end(process) == 0, read_last_line(folder / "log.txt")


def interrupt_launcher(folder: Path, name: str, moment: str, target: str) -> None:
    log, number = folder / "log.txt", getattr(signal, f"SIG{name}")
    with start_launcher(folder) as process:
        time.sleep(1)
        while process.is_alive() and not any(folder.glob(MOMENTS[moment])):
            time.sleep(0.02)
        assert process.is_alive(), f"it ended before the moment: {read_last_line(log)}"
        if target == "group":
            os.killpg(process.pid, number)
        elif target == "cell":
            cells = [p for p in list_session(process.pid) if p.ppid() == process.pid]
            cells[0].send_signal(number)
        else:
            os.kill(process.pid, number)
        assert wait_for_end(process) != HUNG, "processes are left"
    assert "Traceback" not in log.read_text()


def compare_tables(whole: Path, other: Path) -> list[str]:
    """Compare all cells, and the csv."""
    results = {path.relative_to(whole): path for path in whole.glob("out/**/result.json")}
    assert {path.relative_to(other) for path in other.glob("out/**/result.json")} == {*results}
    one, two = (folder / f"results/{TABLE}.csv" for folder in (whole, other))
    assert one.read_text() == two.read_text()
    pairs = ((path.parent, (other / name).parent) for name, path in results.items())
    return [line for pair in pairs for line in compare_runs(*pair)]


@pytest.mark.robustness
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("launcher")
@pytest.mark.parametrize(("name", "moments", "target"), CASES)
def test_an_interrupted_table_is_the_whole_one_in_the_end(
    whole, folder, name, moments, target
) -> None:
    for moment in moments:
        interrupt_launcher(folder, name, moment, target)
    make_table(folder)
    assert compare_tables(whole, folder) == []


@pytest.mark.robustness
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("launcher")
@pytest.mark.parametrize("jobs", [(1,), (2,), (2, 2)])
def test_one_or_two_launchers_make_the_same_table(whole, folder, jobs) -> None:
    make_table(folder, jobs)
    assert compare_tables(whole, folder) == []
