"""Jobs through submitit, by its executor for one machine: there is no Slurm here."""

import shutil
import sys
import time
from threading import Thread

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch.cluster import ClusterQueue
from experiment_kit.launch.jobs import LOST
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.slurm import SlurmCluster

from tests.kit.launch.test_jobs import COUNT, TOUCH, make_job

PERIOD = 0.5


def test_without_submitit_a_sentence_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'allpass-kit\[slurm\]'"):
        choose_launcher("slurm", "", "runs")


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
    ended, again = [], []
    queue = ClusterQueue(
        cluster,
        jobs,
        lambda job, status: ended.append((job.name, status)),
        on_retry=lambda job, status: again.append((job.name, status)),
        period=PERIOD,
    )

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
    assert sorted(ended) == [("killed", 0), ("preempted", 0)]
    assert again == [("killed", LOST)]  # submitit itself starts the preempted one again
    assert [(tmp_path / "runs" / name / "tries").read_text() for name in names] == ["xx", "xx"]
    assert (tmp_path / "runs/preempted/saved").exists()
