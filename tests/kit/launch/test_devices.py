"""Runs on several devices as jobs: a process for each device, and none that outlives the run."""

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch
from experiment_kit.errors import UserError
from experiment_kit.launch.estimate import estimate_needs
from experiment_kit.launch.jobs import DEFAULT_MEMORY, GIB, Job, JobStarter, run_jobs
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.run import Run

from tests.apps.tiny import NARROW, fit
from tests.kit.launch.test_fork_server import read_weights
from tests.kit.launch.test_jobs import LISTS, make_job

TWO = ("--trainer.devices=2", "--trainer.strategy=ddp")
LONG = ("--trainer.max_epochs=20", "--trainer.check_val_every_n_epoch=10", *TWO)
EXPERIMENT = Experiment(
    app="sequence", data="japanese_vowels", backbone="uea", method="plain", profile="smoke", seed=3
)


def run_two_processes(folder: Path, server: str = "") -> tuple[Run, list[int]]:
    """Train on two devices as a job; return the run, and the statuses of tries that failed."""
    experiment, failed = replace(EXPERIMENT, args=(*NARROW, *LONG)), []
    ((_, run),) = plan_runs([experiment], str(folder)).items()
    arguments = ["-m", "attention_sequence", "fit", *experiment.arguments(str(folder))]
    log, output = run.folder / "log.txt", run.folder / "result.json"
    job = Job("two", arguments, log, output, server=server, devices=2)
    run_jobs([job], 2, lambda *_: None, on_retry=lambda _, status: failed.append(status))
    assert run.has_result, log.read_text()
    return run, failed


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """The run as a new process, as it is started by hand."""
    return run_two_processes(tmp_path_factory.mktemp("whole"))[0]


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
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_whose_process_is_killed_is_tried_again(rank, whole, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")  # as in a task of Slurm, where Lightning finds one
    monkeypatch.setenv("SLURM_JOB_NAME", "allpass")
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        while not killed:
            time.sleep(0.05)
            if any(tmp_path.rglob("step=*.ckpt")) and len(found := find_processes(tmp_path)) == 2:
                killed.extend(found)
                found[rank].kill()

    Thread(target=kill_one, daemon=True).start()
    run, failed = run_two_processes(tmp_path, server="attention_sequence")
    assert failed == [-signal.SIGKILL if rank == 0 else 1]
    log = (run.folder / "log.txt").read_text()
    assert f"resuming {run.folder} from step" in log
    assert rank == 0 or "another process of this run was killed" in log
    assert log.count("finished ") == 1  # one process wrote the result
    _, alive = psutil.wait_procs(killed, timeout=10)
    assert not alive
    first, second = (r.read_result() for r in (whole, run))
    same = {key for key in first["metrics"] if not key.startswith("time/")}
    assert {k: second["metrics"][k] for k in same} == {k: first["metrics"][k] for k in same}
    assert (first["hash"], first["best_epoch"]) == (second["hash"], second["best_epoch"])
    assert read_weights(whole.checkpoint_folder) == read_weights(run.checkpoint_folder)


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_spawn"])
def test_a_strategy_that_forks_is_one_sentence(strategy, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        fit(tmp_path, "--trainer.devices=2", f"--trainer.strategy={strategy}")
    assert end.value.code == 2
    assert "trainer.strategy: processes that are forked within a run do not return its scores: "\
        "take ddp" in capsys.readouterr().err  # fmt: skip


def test_a_run_on_several_machines_is_one_sentence(tmp_path) -> None:
    experiment = replace(EXPERIMENT, args=("--trainer.num_nodes=2",))
    with pytest.raises(
        UserError, match=r"trainer\.num_nodes=2: a launcher starts a run on one mach"
    ):
        estimate_needs([experiment], str(tmp_path))


def test_a_job_needs_its_devices_and_their_memory(tmp_path) -> None:
    two = replace(EXPERIMENT, args=TWO)
    other = replace(two, seed=5)
    found = estimate_needs([EXPERIMENT, two, other], str(tmp_path))
    assert found[EXPERIMENT] == (DEFAULT_MEMORY, 1)
    assert found[two] == found[other] == (2 * DEFAULT_MEMORY, 2)


def test_a_job_takes_a_place_for_each_device(tmp_path) -> None:
    devices = {"huge": 9, "a": 2, "b": 2, "c": 1, "d": 1}
    jobs = [replace(make_job(tmp_path, name, LISTS), devices=n) for name, n in devices.items()]
    run_jobs(jobs, 3, lambda *_: None, memory=100 * GIB)
    beside = {job.name: set(job.log.with_name("others").read_text().split()) for job in jobs}
    assert beside["huge"] == {"huge"}  # alone, since it needs more than there is
    assert all(
        sum(map(devices.get, names)) <= 3 for names in beside.values() if "huge" not in names
    )
    assert beside["a"] == {"a", "c"}


@pytest.mark.parametrize(("slots", "devices", "visible"), [
    ([1], 1, "5"),
    ([0, 1], 2, "4,5"),
    ([3], 2, "5,4"),  # JOBS is above the number of GPUs
    ([], 1, "4"),
])  # fmt: skip
def test_a_job_sees_a_gpu_for_each_device(slots, devices, visible, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    code = "import json, os; print(json.dumps(os.environ['CUDA_VISIBLE_DEVICES']))"
    job = replace(make_job(tmp_path, "a", code), devices=devices)
    assert JobStarter(1).start(job, slots).wait() == 0
    assert json.loads(job.log.read_text()) == visible
