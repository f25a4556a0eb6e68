"""Runs on several devices as jobs: a process for each device, and none that outlives the run."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
from experiment_kit.launch.execute import count_devices
from experiment_kit.launch.jobs import Job
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.run import Run

from tests.apps.tiny import NARROW
from tests.kit.launch.test_jobs import read_weights, run_all

TWO = ("--trainer.devices=2", "--trainer.strategy=ddp")
LONG = ("--trainer.max_epochs=20", "--trainer.check_val_every_n_epoch=10", *TWO)
EXPERIMENT = Experiment(
    app="sequence", data="japanese_vowels", backbone="uea", method="plain", profile="smoke", seed=3
)


def run_two_processes(folder: Path) -> tuple[Run, list[int]]:
    """Train on two devices as a job; return the run, and the statuses of tries that failed."""
    experiment = replace(EXPERIMENT, args=(*NARROW, *LONG))
    ((_, run),) = plan_runs([experiment], str(folder)).items()
    arguments = ["-m", "attention_sequence", "fit", *experiment.arguments(str(folder))]
    log, output = run.folder / "log.txt", run.folder / "result.json"
    job = Job("two", arguments, log, output, devices=2)
    _, retried = run_all([job])
    assert run.has_result, log.read_text()
    return run, [status for _, status in retried]


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


def kill_once(folder: Path, rank: int) -> tuple[Run, list[int]]:
    """Train in a folder, and kill the process of a rank once there is a checkpoint."""
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        while not killed:
            time.sleep(0.05)
            if any(folder.rglob("step=*.ckpt")) and len(found := find_processes(folder)) == 2:
                killed.extend(found)
                found[rank].kill()

    Thread(target=kill_one, daemon=True).start()
    ended = run_two_processes(folder)
    _, alive = psutil.wait_procs(killed, timeout=10)
    assert not alive
    return ended


@pytest.mark.timeout(300)
def test_a_run_whose_process_is_killed_is_tried_again(tmp_path, monkeypatch) -> None:
    """Whichever it is, and whenever, the run ends the same."""
    monkeypatch.setenv("SLURM_NTASKS", "1")  # as in a task of Slurm, where Lightning finds one
    monkeypatch.setenv("SLURM_JOB_NAME", "allpass")
    runs = []
    for rank in (0, 1):
        run, failed = kill_once(tmp_path / str(rank), rank)
        runs.append(run)
        assert failed == [-signal.SIGKILL if rank == 0 else 1]
        log = (run.folder / "log.txt").read_text()
        assert f"resuming {run.folder} from step" in log
        assert rank == 0 or "another process of this run was killed" in log
        assert log.count("finished ") == 1  # one process wrote the result
    first, second = (run.read_result() for run in runs)
    same = {key for key in first["metrics"] if not key.startswith("time/")}
    assert {k: second["metrics"][k] for k in same} == {k: first["metrics"][k] for k in same}
    assert (first["hash"], first["best_epoch"]) == (second["hash"], second["best_epoch"])
    assert read_weights(runs[0].checkpoint_folder) == read_weights(runs[1].checkpoint_folder)


@pytest.mark.parametrize(("devices", "count"), [(2, 2), ([0, 1, 3], 3), ("auto", 1), ("0,1", 2)])
def test_devices_are_counted(devices, count) -> None:
    assert count_devices({"trainer": {"devices": devices}}) == count
