"""`python -m experiment_kit table` that is interrupted: real processes, and none that is left."""

import os
import signal
import time
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
    *("--folder=out", "--out=results", "--jobs=2"),
)
MOMENTS = {  # the moment has come when such a file is there
    "planning": "apps",
    "cells start": "out/**/log.txt",
    "cells train": "out/**/environment.yaml",
    "a checkpoint is there": "out/**/checkpoints/step=*.ckpt",
    "a cell ends": "out/**/result.json",
}
CASES = [  # signal, its moment, who receives it
    *(("KILL", moment, "launcher") for moment in MOMENTS),
    *((name, "cells train", "launcher") for name in ("TERM", "INT", "HUP")),
    ("INT", "cells train", "group"),
    *((name, "cells train", "cell") for name in ("KILL", "TERM")),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a table that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    make_table(folder)
    return folder


def start_launcher(folder: Path) -> AbstractContextManager[BaseProcess]:
    if not (folder / "apps").exists():
        (folder / "apps").symlink_to(ROOT / "apps")
    # the launcher chooses the threads, as for a user
    return start_python(COMMAND, folder / "log.txt", folder, OMP_NUM_THREADS="")


def make_table(folder: Path, launchers: int = 1) -> None:
    with ExitStack() as stack:
        for process in [stack.enter_context(start_launcher(folder)) for _ in range(launchers)]:
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
@pytest.mark.parametrize(("name", "moment", "target"), CASES)
def test_an_interrupted_table_ends_as_the_whole_one(whole, tmp_path, name, moment, target) -> None:
    """Two launchers, of which neither knows of the other, make what is left."""
    interrupt_launcher(tmp_path, name, moment, target)
    make_table(tmp_path, launchers=2)
    assert compare_tables(whole, tmp_path) == []
