"""Forks of a process that has imported an app: each is as a new process, and none is left."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from experiment_kit.launch.jobs import Job, JobStarter, run_jobs
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.run import parse_step

from tests.apps.tiny import NARROW
from tests.processes import start_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux alone")

MAIN = """
import os, signal, sys, time
from pathlib import Path

def main():
    place, action = Path(sys.argv[1]), sys.argv[2]
    (place / "pid").write_text(f"{os.getpid()} {os.getppid()}")
    print("hello from", place.name, os.environ["OMP_NUM_THREADS"], *sys.argv[3:])
    if action == "save":
        signal.signal(signal.SIGTERM, lambda *_: ((place / "saved").touch(), sys.exit(75)))
    if action in ("save", "sleep"):
        time.sleep(60)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action.isdigit():
        raise SystemExit(int(action))
    if action == "raise":
        raise ValueError("a bug")
    (place / "result.json").touch()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "worker"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MAIN)
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def make(name: str, action: str, *more: str) -> Job:
        place = tmp_path / name
        arguments = ["-m", "worker", str(place), action, *more]
        return Job(name, arguments, place / "log.txt", place / "result.json", server="worker")

    return make


def test_jobs_are_forked_from_one_server_each_with_its_log_and_status(
    make_job, monkeypatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    actions = {"a": "0", "b": "touch", "c": "7", "d": "raise", "e": "kill", "f": "2"}
    jobs, ended = [make_job(name, action, "x y") for name, action in actions.items()], {}
    run_jobs(jobs, 2, lambda job, status: ended.update({job.name: status}))
    assert ended == {"a": 0, "b": 0, "c": 7, "d": 1, "e": -signal.SIGKILL, "f": 2}
    pids = [job.log.with_name("pid").read_text().split() for job in jobs]
    assert len({server for _, server in pids}) == 1
    assert len({pid for pid, _ in pids} | {pids[0][1]}) == len(jobs) + 1
    assert jobs[1].log.read_text() == "hello from b 3 x y\n"
    assert jobs[3].log.read_text().endswith("ValueError: a bug\n")
    assert not psutil.pid_exists(int(pids[0][1]))  # the server ends with the jobs


def test_a_server_that_is_killed_costs_a_retry(make_job) -> None:
    jobs = [make_job("a", "sleep"), make_job("b", "touch")]
    ended, retried = {}, []

    def kill_server(job: Job, status: int) -> None:
        ended[job.name] = status
        _, server = map(int, job.log.with_name("pid").read_text().split())
        os.kill(server, signal.SIGKILL)

    def replace_action(job: Job, status: int) -> None:
        retried.append((job.name, status))
        job.arguments[3] = "touch"

    run_jobs(jobs, 2, kill_server, on_retry=replace_action)
    assert retried == [("a", -signal.SIGKILL)]
    assert ended == {"b": 0, "a": 0}


def test_a_server_that_is_lost_is_closed_as_another_takes_its_place(make_job) -> None:
    first, second = make_job("a", "sleep"), make_job("b", "touch")
    with JobStarter(1) as starter:
        child = starter.start(first)
        (lost,) = starter.servers.values()
        lost.process.kill()
        assert child.wait() == -signal.SIGKILL
        assert starter.start(second).wait() == 0
        assert lost.connection.closed
        assert not lost.receiver.is_alive()
        assert lost.process.returncode == -signal.SIGKILL  # no zombie is left
    assert second.output.exists()


def test_no_fork_outlives_a_killed_launcher_and_each_saves(make_job, tmp_path) -> None:
    job = make_job("a", "save")
    code = (
        "from pathlib import Path; from experiment_kit.launch.jobs import Job, run_jobs\n"
        f"place = Path({str(job.log.parent)!r})\n"
        f"job = Job('a', {job.arguments!r}, place / 'log.txt', place / 'r.json', server='worker')\n"
        "run_jobs([job], 1, print)\n"
    )
    (tmp_path / "launch.py").write_text(code)
    environment = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    with start_python([str(tmp_path / "launch.py")], tmp_path / "log", **environment) as launcher:
        deadline = time.monotonic() + 60
        while not job.log.is_file() or "hello" not in job.log.read_text():
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        time.sleep(0.2)  # the signal is handled from then on
        children = [
            psutil.Process(int(pid)) for pid in (job.log.parent / "pid").read_text().split()
        ]
        launcher.kill()
        launcher.join()
        # in here, as the end of this block kills what is left of the group
        _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert (job.log.parent / "saved").exists()


@pytest.mark.timeout(300)
def test_a_forked_run_is_bit_equal_to_one_of_its_own_process(tmp_path) -> None:
    one = "--trainer.max_steps=2", "--trainer.limit_test_batches=1", "--trainer.limit_val_batches=1"
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "gfsa"}
    experiment = Experiment(**names, profile="smoke", seed=3, args=(*NARROW, *one))
    found = []
    for server in ("", "attention_sequence"):
        folder = str(tmp_path / f"runs{server}")
        ((_, run),) = plan_runs([experiment], folder).items()
        arguments = ["-m", "attention_sequence", "fit", *experiment.arguments(folder)]
        log, output = run.folder / "log.txt", run.folder / "result.json"
        job = Job("x", [*arguments, "--trainer.enable_progress_bar=false"], log, output)
        run_jobs([Job(**vars(job) | {"server": server})], 1, lambda *_: None)
        assert run.has_result, log.read_text()
        found.append((run.read_result(), read_weights(run.checkpoint_folder)))
    (first, weights), (second, others) = found
    same = {key for key in first["metrics"] if not key.startswith(("speed/", "time"))}
    assert {k: first["metrics"][k] for k in same} == {k: second["metrics"][k] for k in same}
    assert first["hash"] == second["hash"]
    assert weights == others


def read_weights(folder: Path) -> str:
    import torch

    path = max(folder.glob("step=*.ckpt"), key=parse_step)
    state = torch.load(path, weights_only=True)["state_dict"]
    return json.dumps({name: weight.tolist() for name, weight in state.items()})
