"""Jobs through submitit, by its executor for one machine: there is no Slurm here."""

import shutil
import time
from dataclasses import replace
from threading import Thread

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import LOST
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.slurm import SlurmCluster

from tests.kit.launch.clusters import PERIOD, RecordingQueue
from tests.kit.launch.test_jobs import COUNT, TOUCH, make_job


@pytest.fixture
def submitit():
    return pytest.importorskip("submitit", reason="allpass-kit[slurm] is not installed")


@pytest.mark.parametrize(("address", "sentence"), [
    ("", "there is no sbatch on this machine"),
    ("head:6379", "takes the address local, or none, got 'head:6379'"),
])  # fmt: skip
def test_a_machine_without_slurm_is_one_sentence(
    address, sentence, submitit, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UserError, match=sentence):
        choose_launcher("slurm", address, str(tmp_path))


# it is told to stop while it runs for the first time, saves, and finishes the next time
STOPS = f"""{COUNT}
import signal, time

def save(*_):
    Path(sys.argv[1], "saved").touch()
    raise SystemExit(75)

signal.signal(signal.SIGTERM, save)
if tries.read_text() == "x":
    Path(sys.argv[1], "runs").touch()
    time.sleep(60)
{TOUCH}
"""


@pytest.mark.timeout(240)
def test_jobs_end_once_though_one_is_preempted_and_one_is_killed(submitit, tmp_path) -> None:
    names = "preempted", "killed"
    jobs = [make_job(tmp_path / "runs", name, STOPS) for name in names]
    cluster = SlurmCluster(tmp_path / "slurm", "local")
    queue = RecordingQueue(cluster, jobs)

    def stop_jobs() -> None:
        for name in names:
            while not (tmp_path / "runs" / name / "runs").exists():
                time.sleep(0.02)
            (handle,) = (h for h, job in queue.running.items() if job.name == name)
            (task,) = psutil.Process(int(handle.job_id)).children()
            if name == "preempted":
                task.send_signal(submitit.JobEnvironment._usr_sig())
            else:
                task.kill()

    Thread(target=stop_jobs, daemon=True).start()
    queue.run(workers=2)
    assert sorted(queue.ended) == [("killed", 0), ("preempted", 0)]
    assert queue.again == [("killed", LOST)]  # submitit itself starts the preempted one again
    assert [(tmp_path / "runs" / name / "tries").read_text() for name in names] == ["xx", "xx"]
    assert (tmp_path / "runs/preempted/saved").exists()


@pytest.mark.timeout(240)
def test_an_array_has_the_cores_of_its_devices_and_handles_stay_in_order(
    submitit, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")  # of Slurm; the local executor sets none
    threads = "from pathlib import Path; import os, sys; place = Path(sys.argv[1])"
    threads += "; (place / 'result.json').write_text(os.environ['OMP_NUM_THREADS'])"
    devices = {"a": 2, "b": 1, "c": 2}
    jobs = [replace(make_job(tmp_path, n, threads), devices=d) for n, d in devices.items()]
    cluster, asked = SlurmCluster(tmp_path / "slurm", "local"), []
    update = cluster.executor.update_parameters

    def update_parameters(**options) -> None:
        asked.append(options["cpus_per_task"])
        update(**options)

    monkeypatch.setattr(cluster.executor, "update_parameters", update_parameters)
    handles = cluster.submit_jobs(jobs, PERIOD)
    assert [handle.result() for handle in handles] == [0, 0, 0]
    assert [cluster.jobs[handle].name for handle in handles] == ["a", "b", "c"]
    assert asked == [None, 2]
    assert [job.output.read_text() for job in jobs] == ["3", "6", "3"]


@pytest.mark.parametrize("given", ["1", "a100:1", "", "2", "a100:2"])
def test_fewer_gpus_than_devices_are_one_sentence(given, submitit, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SBATCH_GPUS", given)
    cluster = SlurmCluster(tmp_path / "slurm", "local")
    job = replace(make_job(tmp_path, "a", TOUCH), devices=2)
    if given[-1:] != "1":
        cluster.check_job(job)
        return
    with pytest.raises(UserError, match=f"a has 2 devices: set SBATCH_GPUS=2, got {given}"):
        cluster.check_job(job)
