"""Runs on several devices as jobs: a process for each device, and none that outlives the run."""

import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
from experiment_kit.launch.execute import count_devices
from experiment_kit.launch.jobs import Job
from experiment_kit.launch.plan import Experiment, plan_runs

from tests.apps.tiny import NARROW
from tests.kit.launch.test_jobs import run_all

TWO = ("--trainer.devices=2", "--trainer.strategy=ddp")
LONG = ("--trainer.max_epochs=20", "--trainer.check_val_every_n_epoch=10", *TWO)
EXPERIMENT = Experiment(
    app="sequence", data="japanese_vowels", backbone="uea", method="plain", profile="smoke", seed=3
)


def find_processes(folder: Path) -> list[psutil.Process]:
    """Return the processes of the run in a folder, that of rank 0 first."""
    for process in psutil.process_iter():
        try:
            if "fit" in process.cmdline() and f"--run.folder={folder}" in process.cmdline():
                found = [process.parent(), process]  # a fork shows the arguments of its server
                assert process.environ()["LOCAL_RANK"] == "1"
                return found
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return []


@pytest.mark.timeout(300)
def test_a_run_whose_process_is_killed_is_tried_again(tmp_path, monkeypatch) -> None:
    """One that Lightning has started: that of rank 0 is the process of any job."""
    monkeypatch.setenv("SLURM_NTASKS", "1")  # as in a task of Slurm, where Lightning finds one
    monkeypatch.setenv("SLURM_JOB_NAME", "allpass")
    experiment, killed = replace(EXPERIMENT, args=(*NARROW, *LONG)), list[psutil.Process]()
    ((_, run),) = plan_runs([experiment], str(tmp_path)).items()
    arguments = ["-m", "attention_sequence", "fit", *experiment.arguments(str(tmp_path))]
    log = run.folder / "log.txt"

    def kill_one() -> None:
        while not killed:
            time.sleep(0.05)
            if any(tmp_path.rglob("step=*.ckpt")) and len(found := find_processes(tmp_path)) == 2:
                killed.extend(found)
                found[1].kill()

    Thread(target=kill_one, daemon=True).start()
    _, retried = run_all([Job("two", arguments, log, run.folder / "result.json", devices=2)])
    assert [status for _, status in retried] == [1]
    _, alive = psutil.wait_procs(killed, timeout=10)
    assert not alive
    text = log.read_text()
    assert f"resuming {run.folder} from step" in text
    assert "another process of this run was killed" in text
    assert text.count("finished ") == 1  # one process wrote the result


@pytest.mark.parametrize(("devices", "count"), [(2, 2), ([0, 1, 3], 3), ("auto", 1), ("0,1", 2)])
def test_devices_are_counted(devices, count) -> None:
    assert count_devices({"trainer": {"devices": devices}}) == count
