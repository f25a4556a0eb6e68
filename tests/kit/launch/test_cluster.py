"""Jobs of one launcher among others, on machines that may die: tasks, leases and retries."""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch import cluster as clusters
from experiment_kit.launch import launchers
from experiment_kit.launch import lease as leases
from experiment_kit.launch.cluster import run_leased_job
from experiment_kit.launch.jobs import HELD, LOST, Job, JobStarter
from experiment_kit.launch.lease import find_lease, is_held, take_lease

from tests.kit.launch.clusters import RecordingQueue
from tests.kit.launch.test_jobs import COUNT, TOUCH, make_job

PERIOD = 0.2


class ScriptedCluster:
    """A cluster whose tasks end at once, each with the next of the statuses of its job."""

    def __init__(self, statuses: dict[str, list[int]], places: int = 2) -> None:
        self.statuses, self.places = statuses, places
        self.submitted: list[list[str]] = []
        self.cancelled: list[int] = []
        self.jobs: list[Job] = []

    def count_places(self) -> int:
        return self.places

    def check_job(self, job: Job) -> None:
        """Refuse a job of more than nine devices."""
        if job.devices > 9:
            raise UserError(f"{job.name}: no machine has {job.devices} devices")

    def submit_jobs(self, jobs: Sequence[Job], period: float) -> list[int]:
        self.submitted.append([job.name for job in jobs])
        self.jobs += jobs
        return [*range(len(self.jobs) - len(jobs), len(self.jobs))]

    def collect_ended(self, handles: Sequence[int], seconds: float) -> dict[int, int]:
        job = self.jobs[handles[0]]
        status = self.statuses[job.name].pop(0)
        if status == 0:
            job.output.touch()
        return {handles[0]: status}

    def cancel_tasks(self, handles: Sequence[int]) -> None:
        self.cancelled += handles


def run_queue(cluster: ScriptedCluster, *jobs: Job) -> tuple[dict[str, int], list[int]]:
    """Return the last status of each job, and those after which one was started again."""
    queue = RecordingQueue(cluster, jobs, PERIOD)
    queue.run()
    return dict(queue.ended), [status for _, status in queue.again]


def test_no_more_tasks_are_submitted_than_there_are_places(tmp_path) -> None:
    cluster = ScriptedCluster({name: [0] for name in "abc"})
    ended, _ = run_queue(cluster, *(make_job(tmp_path, name, "") for name in "abc"))
    assert ended == {"a": 0, "b": 0, "c": 0}
    assert cluster.submitted == [["a", "b"], ["c"]]


def test_a_task_takes_a_place_for_each_device(tmp_path) -> None:
    devices = {"a": 2, "b": 1, "c": 2, "d": 9, "e": 1}
    cluster = ScriptedCluster({name: [0] for name in devices}, places=3)
    jobs = [replace(make_job(tmp_path, name, ""), devices=n) for name, n in devices.items()]
    ended, _ = run_queue(cluster, *jobs)
    assert ended == dict.fromkeys(devices, 0)
    assert cluster.submitted == [["a", "b"], ["c"], ["e"], ["d"]]  # d alone, without its places


def test_a_job_that_no_machine_can_run_is_told_before_any_task(tmp_path) -> None:
    cluster = ScriptedCluster({})
    jobs = make_job(tmp_path, "a", ""), replace(make_job(tmp_path, "b", ""), devices=10)
    with pytest.raises(UserError, match="b: no machine has 10 devices"):
        run_queue(cluster, *jobs)
    assert not cluster.submitted


@pytest.mark.parametrize(("statuses", "last", "again"), [
    ([3, 3], 3, [3]),
    ([2], 2, []),
    ([3, 0], 0, [3]),
    ([LOST, 75, LOST, 3, 0], 0, [LOST, 75, LOST, 3]),
    ([LOST] * 11, LOST, [LOST] * 10),
])  # fmt: skip
def test_a_failure_is_tried_once_more_and_a_lost_machine_often(
    statuses, last, again, tmp_path
) -> None:
    job = make_job(tmp_path, "a", "")
    assert run_queue(ScriptedCluster({"a": list(statuses)}), job) == ({"a": last}, again)
    assert job.log.with_name("failure.json").exists() == (last != 0)
    if last == LOST:
        failure = json.loads(job.log.with_name("failure.json").read_text())
        assert failure["reason"] == "its machine or worker was lost"


def test_a_job_waits_for_the_one_that_it_starts_from(tmp_path) -> None:
    first = make_job(tmp_path, "first", "")
    second = replace(make_job(tmp_path, "second", ""), needs=first.output)
    never = replace(make_job(tmp_path, "never", ""), needs=tmp_path / "absent")
    cluster = ScriptedCluster({"first": [0], "second": [0]})
    assert run_queue(cluster, never, second, first)[0] == {"first": 0, "second": 0}
    assert cluster.submitted == [["first"], ["second"]]


def test_the_run_of_another_launcher_is_left_alone_and_taken_once_it_ends(tmp_path) -> None:
    finishes, dies = (make_job(tmp_path, name, "") for name in ("finishes", "dies"))
    leases = [take_lease(job.log.parent) for job in (finishes, dies)]
    cluster = ScriptedCluster({"dies": [0]})

    def end_others() -> None:
        time.sleep(2 * PERIOD)
        finishes.output.touch()
        for lease in leases:
            lease.renew(released=True)

    Thread(target=end_others).start()
    assert run_queue(cluster, finishes, dies)[0] == {"finishes": 0, "dies": 0}
    assert cluster.submitted == [["dies"]]


def test_a_task_that_finds_the_lease_taken_is_submitted_later(tmp_path) -> None:
    job = make_job(tmp_path, "a", "")
    assert run_queue(ScriptedCluster({"a": [HELD, 0]}), job) == ({"a": 0}, [HELD])


def test_an_interrupted_launcher_cancels_its_tasks(tmp_path, monkeypatch) -> None:
    cluster = ScriptedCluster({})
    monkeypatch.setattr(
        cluster, "collect_ended", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run_queue(cluster, *(make_job(tmp_path, name, "") for name in "ab"))
    assert cluster.cancelled == [0, 1]


def test_a_results_folder_that_cannot_be_written_is_told_before_any_task(tmp_path) -> None:
    (tmp_path / "file").touch()
    cluster = ScriptedCluster({})
    with pytest.raises(OSError, match="file"):
        run_queue(cluster, make_job(tmp_path / "file", "a", ""))
    assert not cluster.submitted


def test_a_task_runs_its_job_once_under_the_lease(tmp_path) -> None:
    job = make_job(tmp_path, "a", f"{COUNT}\n{TOUCH}")
    assert [run_leased_job(job, JobStarter(1)) for _ in range(2)] == [0, 0]
    assert (tmp_path / "a/tries").read_text() == "x"
    assert find_lease(job.log.parent).name == "lease.1"
    assert not is_held(job.log.parent)


def test_a_task_does_nothing_while_another_holds_the_lease(tmp_path) -> None:
    job = make_job(tmp_path, "a", TOUCH)
    lease = take_lease(job.log.parent)
    assert lease
    assert run_leased_job(job, JobStarter(1)) == HELD
    assert not job.output.exists()


def test_a_task_without_a_lease_kills_its_job_which_may_not_even_save(tmp_path) -> None:
    save = "import os, signal, sys, time\nfrom pathlib import Path\nplace = Path(sys.argv[1])\n"
    save += "signal.signal(signal.SIGTERM, lambda *_: (place / 'saved').touch())\n"
    save += "(place / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    job = make_job(tmp_path, "a", save)

    def take_over() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "a/pid").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        find_lease(job.log.parent).rename(tmp_path / "a/lease.2")

    Thread(target=take_over).start()
    assert run_leased_job(job, JobStarter(1), PERIOD) == LOST
    assert not psutil.pid_exists(int((tmp_path / "a/pid").read_text()))
    assert not (tmp_path / "a/saved").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_task_whose_folder_cannot_be_written_kills_its_job(number, tmp_path, monkeypatch) -> None:
    job = make_job(tmp_path, "a", "import time; time.sleep(60)")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    def wait_for_end(process, lease) -> int:  # the disk was writable when the lease was taken
        monkeypatch.setattr(leases.os, "fsync", refuse)
        return wait(process, lease)

    wait = clusters._wait_for_end
    monkeypatch.setattr(clusters, "_wait_for_end", wait_for_end)
    began = time.monotonic()
    assert run_leased_job(job, JobStarter(1), PERIOD) == LOST
    assert time.monotonic() - began < 30
    assert find_lease(job.log.parent)
    monkeypatch.undo()
    later = make_job(tmp_path, "a", TOUCH)
    statuses = [HELD]
    while statuses[-1] == HELD:  # once it has room again, the same process may go on
        statuses.append(run_leased_job(later, JobStarter(1), PERIOD))
    assert statuses[-1] == 0


def test_an_interrupted_task_lets_its_job_save_and_releases_the_lease(
    tmp_path, monkeypatch
) -> None:
    job = make_job(tmp_path, "a", "import time; time.sleep(60)")
    processes = []

    def interrupt(process, lease) -> int:
        processes.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(clusters, "_wait_for_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_leased_job(job, JobStarter(1))
    assert processes[0].wait() == -signal.SIGTERM
    assert not is_held(job.log.parent)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_without_its_package_a_sentence_says_how_to_get_it(name, package, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    sentence = (
        rf"the launcher {name} needs the package {package}: pip install 'allpass-kit\[{name}\]'"
    )
    with pytest.raises(UserError, match=sentence):
        launchers.choose_launcher(name, "", "runs")


def test_an_address_needs_a_launcher_that_has_one() -> None:
    assert launchers.choose_launcher("local", "", "runs") is None
    with pytest.raises(UserError, match="--address=auto needs --launcher=ray or"):
        launchers.choose_launcher("local", "auto", "runs")


def test_paths_of_a_task_hold_on_any_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA_DIR", "data")
    task = clusters.make_task(make_job(Path("runs"), "a", ""), 3, PERIOD)
    assert task.job.log == tmp_path / "runs/a/log.txt"
    assert (task.folder, task.threads) == (str(tmp_path), 3)
    assert task.environment["DATA_DIR"] == "data"
