"""Processes side by side: their order and failures; none outlives its launcher."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import torch
from experiment_kit.errors import UserError, exit_on_signal
from experiment_kit.launch import jobs, supervision
from experiment_kit.launch.jobs import Job, Places, run_jobs
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.launch.supervision import WORKER_LOST
from experiment_kit.run import Run

from tests.apps.tiny import NARROW
from tests.processes import start_python


def make_job(folder: Path, name: str, action: str = "touch", **fields) -> Job:
    place = folder / name
    arguments = ["-m", "tests.kit.launch.child", action, str(place)]
    return Job(name, arguments, place / "log.txt", place / "result.json", **fields)


def read_starts(job: Job) -> list[list[int]]:
    """Return the numbers of the process and of its parent, for each start."""
    path = job.log.with_name("starts")
    return [list(map(int, line.split())) for line in path.read_text().splitlines()]


def run_all(found: list[Job], workers: int = 2) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Run jobs; return the status of each, and the statuses of tries that were repeated."""
    ended, retried = {}, []
    run_jobs(
        found,
        Places(workers),
        lambda job, status: ended.update({job.name: status}),
        on_retry=lambda job, status: retried.append((job.name, status)),
    )
    return ended, retried


def test_processes_run_side_by_side_each_with_its_log_and_status(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    actions = {"a": "touch", "b": "7", "c": "raise", "d": "kill", "e": "2", "f": "kill-once"}
    found = {name: make_job(tmp_path, name, action) for name, action in actions.items()}
    ended, retried = run_all([*found.values()])
    killed = -signal.SIGKILL
    assert ended == {"a": 0, "b": 7, "c": 1, "d": killed, "e": 2, "f": 0}
    assert sorted(retried) == [("b", 7), ("c", 1), ("d", killed), ("f", killed)]
    assert found["a"].log.read_text().endswith("started a 3\n")
    assert found["c"].log.read_text().endswith("ValueError: a bug\n")


@contextmanager
def launch(folder: Path, *actions: str, **environment: str) -> Iterator[Any]:
    """Start a launcher of jobs; give it and the jobs once all are ready."""
    found = [make_job(folder, action, action) for action in actions]
    code = (
        "if __name__ == '__main__':\n"  # its processes import this file
        "    from pathlib import Path; from experiment_kit.errors import exit_on_signal\n"
        "    from tests.kit.launch.test_jobs import Places, make_job, run_jobs, supervision\n"
        "    supervision._PRELOADED = [supervision.__name__]\n"  # they only sleep
        f"    jobs = [make_job(Path({str(folder)!r}), name, name) for name in {actions}]\n"
        "    with exit_on_signal():\n"
        f"        run_jobs(jobs, Places({len(actions)}), print)\n"
    )
    (folder / "launch.py").write_text(code)
    with start_python([str(folder / "launch.py")], folder / "log", **environment) as process:
        deadline = time.monotonic() + 120
        while not all(job.log.with_name("ready").exists() for job in found):
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield process, found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("signals", "grace"), [
    ([signal.SIGTERM], 1.0),
    ([signal.SIGINT, signal.SIGTERM], 100.0),  # the second one does not wait
    ([signal.SIGKILL], 1.0),
])  # fmt: skip
def test_deaf_and_stopped_runs_are_killed_with_their_launcher(signals, grace, tmp_path) -> None:
    with launch(tmp_path, "deaf", "stopped", "save", ALLPASS_GRACE=str(grace)) as (process, found):
        children = [psutil.Process(number) for job in found for number in read_starts(job)[0]]
        began = time.monotonic()
        for number in signals:
            os.kill(process.pid, number)
            time.sleep(0.5)
        process.join(30)
        assert process.exitcode in (128 + signals[0], 128 + signals[-1], -signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
        assert time.monotonic() - began < 20
    assert (tmp_path / "save/saved").exists()


def test_nothing_that_a_run_has_started_outlives_it(tmp_path) -> None:
    job = make_job(tmp_path, "a", "grandchild")
    assert run_all([job]) == ({"a": 0}, [])
    assert not psutil.pid_exists(int(job.log.with_name("grandchild").read_text()))


def test_the_death_of_the_server_is_no_try_of_its_jobs(tmp_path) -> None:
    actions = {"a": "kill-server-once", "b": "7"}
    found = [make_job(tmp_path, name, action) for name, action in actions.items()]
    slow = make_job(tmp_path, "c", "save-once")
    ended, retried = run_all([*found, slow], 3)
    assert ended == {"a": 0, "b": 7, "c": 0}
    lost = {name: status for name, status in retried if name != "b"}
    assert lost == {"a": WORKER_LOST, "c": WORKER_LOST}
    assert [s for name, s in retried if name == "b" and s != WORKER_LOST] == [7]
    assert len(read_starts(slow)) == 2


@pytest.mark.parametrize(("number", "group"), [
    (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False),
])  # fmt: skip
def test_a_signal_ends_the_launcher_once_jobs_have_saved(number, group, tmp_path, capsys) -> None:
    found = [make_job(tmp_path, name, "save") for name in "abc"]

    def find_ready() -> list[Job]:
        return [job for job in found if job.log.with_name("ready").exists()]

    def send_signal() -> None:
        deadline = time.monotonic() + 60
        while len(find_ready()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        children = [read_starts(job)[0][0] for job in find_ready()]
        for process in (*(children if group else ()), os.getpid()):
            os.kill(process, number)

    before = signal.getsignal(number)
    Thread(target=send_signal).start()
    with pytest.raises(SystemExit) as end, exit_on_signal():
        run_jobs(found, Places(2), lambda *_: None)
    assert end.value.code == 128 + number
    text = f"stopped by {number.name}: the same command goes on from here\n"
    assert capsys.readouterr().err == text
    assert sorted(path.parent.name for path in tmp_path.glob("*/saved")) == ["a", "b"]
    assert not any(psutil.pid_exists(read_starts(job)[0][0]) for job in find_ready())
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_waits_for_the_one_that_it_starts_from(workers, tmp_path) -> None:
    first, other = (make_job(tmp_path, name) for name in ("first", "other"))
    second = make_job(tmp_path, "second", needs=first.output)
    third = make_job(tmp_path, "third", needs=second.output)
    never = make_job(tmp_path, "never", needs=tmp_path / "nothing")
    ended, _ = run_all([third, second, never, other, first], workers)
    assert [name for name in ended if name != "other"] == ["first", "second", "third"]
    assert set(ended.values()) == {0}


def test_a_job_takes_a_place_for_each_device(tmp_path) -> None:
    devices = {"huge": 9, "a": 2, "b": 2, "c": 1, "d": 1}
    found = [make_job(tmp_path, name, "list", devices=n) for name, n in devices.items()]
    run_jobs(found, Places(3), lambda *_: None)
    beside = {job.name: set(job.log.with_name("others").read_text().split()) for job in found}
    assert beside["huge"] == {"huge"}  # alone, since it needs more than there is
    assert all(sum(map(devices.get, x)) <= 3 for x in beside.values() if "huge" not in x)


@pytest.mark.parametrize(("slots", "devices", "visible"), [
    ([1], 1, "5"),
    ([0, 1], 2, "4,5"),
    ([3], 2, "5,4"),  # JOBS is above the number of GPUs
])  # fmt: skip
def test_a_job_sees_a_gpu_for_each_device(slots, devices, visible, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    job = make_job(tmp_path, "a", devices=devices)
    assert jobs.choose_devices(job, slots) == {"CUDA_VISIBLE_DEVICES": visible}


def test_threads_are_one_or_the_users_or_a_share_of_the_cores_of_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(jobs, "count_cores", lambda: 18)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert jobs.count_threads() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert jobs.count_threads() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert jobs.count_threads() == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(UserError, match="must be a number, got 'many'"):
        jobs.count_threads()


def read_weights(folder: Path) -> dict[str, list]:
    files = sorted(folder.glob("*.ckpt"))
    states = [torch.load(path, weights_only=True)["state_dict"] for path in files]
    return {p.name: [x.tolist() for x in s.values()] for p, s in zip(files, states, strict=True)}


@pytest.mark.timeout(300)
def test_a_run_is_bit_equal_beside_others_and_in_its_own_process(tmp_path, monkeypatch) -> None:
    one = "--trainer.max_steps=2", "--trainer.limit_test_batches=1", "--trainer.limit_val_batches=1"
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "gfsa"}
    experiment = Experiment(**names, profile="smoke", seed=3, args=(*NARROW, *one))
    found: list[tuple[Run, Job]] = []
    for name in ("forked", "beside", "new"):
        (run,) = plan_runs([experiment], str(tmp_path / name)).values()
        arguments = ["-m", "attention_sequence", "fit", *experiment.arguments(str(tmp_path / name))]
        found.append((run, Job(name, arguments, run.folder / "log", run.folder / "result.json")))
    assert set(run_all([job for _, job in found[:2]])[0].values()) == {0}
    with monkeypatch.context() as patch:
        spawn = multiprocessing.get_context("spawn")
        patch.setattr(supervision, "_prepare_context", lambda *_: spawn)
        assert run_all([replace(found[2][1])])[0] == {"new": 0}
    weights = [read_weights(run.checkpoint_folder) for run, _ in found]
    assert weights[0] == weights[1] == weights[2] != {}
