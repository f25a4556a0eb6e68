"""Processes side by side: their order, memory and failures; none outlives its launcher."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch
from experiment_kit.errors import UserError, exit_on_signal
from experiment_kit.launch import jobs
from experiment_kit.launch.jobs import GIB, Job, run_jobs

from tests.processes import start_python


def make_job(folder: Path, name: str, code: str) -> Job:
    place = folder / name
    return Job(name, ["-c", code, str(place)], place / "log.txt", place / "result.json")


def test_processes_run_side_by_side_and_report_their_status(tmp_path) -> None:
    ended = {}
    jobs = [make_job(tmp_path, str(n), f"print({n}); raise SystemExit({n})") for n in range(3)]
    run_jobs(jobs, 2, lambda job, status: ended.update({job.name: status}))
    assert ended == {"0": 0, "1": 1, "2": 2}
    assert (tmp_path / "2/log.txt").read_text() == "2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals exist on Linux alone")
def test_no_process_outlives_a_killed_launcher(tmp_path) -> None:
    code = (
        "from pathlib import Path; from experiment_kit.launch.jobs import Job, run_jobs\n"
        f"log = Path({str(tmp_path)!r}) / 'log'\n"
        "run_jobs([Job('x', ['-c', 'import time; time.sleep(60)'], log, log)], 1, print)\n"
    )
    (tmp_path / "launch.py").write_text(code)
    with start_python([str(tmp_path / "launch.py")], tmp_path / "launcher.log") as launcher:
        deadline = time.monotonic() + 60
        while not (children := psutil.Process(launcher.pid).children()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        launcher.kill()
        launcher.join()
        # in here, as the end of this block kills what is left of the group
        _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


SAVES = """
import os, signal, sys, time
from pathlib import Path

def save(number, _):
    Path(sys.argv[1], "saved").touch()
    raise SystemExit(75)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, save)
Path(sys.argv[1], f"{os.getpid()}.pid").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("group", [False, True], ids=["launcher", "group"])
def test_a_signal_ends_the_launcher_in_one_line_once_its_jobs_have_saved(
    number, group, tmp_path, capsys
) -> None:
    jobs = [make_job(tmp_path, name, SAVES) for name in "abc"]

    def find_jobs() -> list[int]:  # not every child: other tests may have left some
        return [int(path.stem) for path in tmp_path.glob("*/*.pid")]

    def send_signal() -> None:
        deadline = time.monotonic() + 60
        while len(find_jobs()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in (*(find_jobs() if group else ()), os.getpid()):
            os.kill(process, number)

    before = signal.getsignal(number)
    Thread(target=send_signal).start()
    with pytest.raises(SystemExit) as end, exit_on_signal():
        run_jobs(jobs, 2, lambda *_: None)
    assert end.value.code == 128 + number
    assert (
        capsys.readouterr().err == f"stopped by {number.name}: the same command goes on from here\n"
    )
    assert sorted(path.parent.name for path in tmp_path.glob("*/saved")) == ["a", "b"]
    assert not any(map(psutil.pid_exists, find_jobs()))
    assert signal.getsignal(number) is before


TOUCH = "from pathlib import Path; import sys; Path(sys.argv[1], 'result.json').touch()"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_waits_for_the_one_that_it_starts_from(workers, tmp_path) -> None:
    first, other = (make_job(tmp_path, name, TOUCH) for name in ("first", "other"))
    second = replace(make_job(tmp_path, "second", TOUCH), needs=first.output)
    third = replace(make_job(tmp_path, "third", TOUCH), needs=second.output)
    ended = []
    jobs = [third, second, other, first]
    run_jobs(jobs, workers, lambda job, status: ended.append((job.name, status)))
    assert sorted(ended) == [(name, 0) for name in ("first", "other", "second", "third")]
    order = [name for name, _ in ended if name != "other"]
    assert order == ["first", "second", "third"]


COUNT = """
import sys
from pathlib import Path

tries = Path(sys.argv[1], "tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
"""


def run_one(job: Job) -> tuple[list[int], list[int]]:
    """Return the exit statuses of a job's failed tries, and of its end."""
    retried, ended = [], []
    run_jobs(
        [job], 1, lambda _, status: ended.append(status), on_retry=lambda _, n: retried.append(n)
    )
    return retried, ended


def test_a_job_that_fails_is_run_once_more_and_says_so_beside_its_log(tmp_path) -> None:
    job = make_job(tmp_path, "a", f"{COUNT}\nprint('it broke')\nraise SystemExit(3)")
    assert run_one(job) == ([3], [3])
    assert (tmp_path / "a/tries").read_text() == "xx"
    failure = json.loads((tmp_path / "a/failure.json").read_text())
    assert failure == {
        "job": "a", "reason": "exit status 3", "last_line": "it broke", "log": "log.txt", "tries": 2
    }  # fmt: skip


def test_a_job_that_is_killed_once_finishes_and_leaves_no_failure(tmp_path) -> None:
    kill = "import os, signal\nif tries.read_text() == 'x': os.kill(os.getpid(), signal.SIGKILL)"
    job = make_job(tmp_path, "a", f"{COUNT}\n{kill}\n{TOUCH}")
    job.log.parent.mkdir()
    (tmp_path / "a/failure.json").write_text("{}")  # of an earlier launcher
    assert run_one(job) == ([-signal.SIGKILL], [0])
    assert not (tmp_path / "a/failure.json").exists()


def test_a_mistake_of_the_user_is_not_tried_again(tmp_path) -> None:
    assert run_one(make_job(tmp_path, "a", "raise SystemExit(2)")) == ([], [2])


LISTS = """
import sys, time
from pathlib import Path

place = Path(sys.argv[1])
(place / "running").touch()
time.sleep(0.3)
others = [path.parent.name for path in place.parent.glob("*/running")]
(place / "others").write_text(" ".join(others))
(place / "running").unlink()
(place / "result.json").touch()
"""


def test_no_more_run_side_by_side_than_fit_into_the_memory(tmp_path) -> None:
    sizes = {"large": 9, "a": 2, "b": 2, "c": 1}
    found = [replace(make_job(tmp_path, name, LISTS), memory=n * GIB) for name, n in sizes.items()]
    run_jobs(found, 4, lambda *_: None, memory=4 * GIB)
    beside = {job.name: set(job.log.with_name("others").read_text().split()) for job in found}
    assert beside["large"] == {"large"}  # alone, since it needs more than there is
    assert all(sum(map(sizes.get, names)) <= 4 for names in beside.values() if "large" not in names)
    assert beside["a"] & beside["b"]


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_do_not_depend_on_the_number_of_workers(workers, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = "import os; print(os.environ['OMP_NUM_THREADS'])"
    log = tmp_path / "log.txt"
    run_jobs([Job("a", ["-c", code], log, log)], workers, lambda *_: None)
    assert log.read_text() == "1\n"


def test_threads_are_chosen_by_the_user_or_shared_among_gpus(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(jobs, "count_cores", lambda: 18)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert jobs.count_threads() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert jobs.count_threads() == 7


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_threads_that_are_no_number_are_refused(value: str, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(UserError, match=f"must be a positive number, got '{value}'"):
        jobs.count_threads()
