"""Slurm, through submitit: an array of jobs, one a run, which Slurm starts again after preemption.

What sbatch takes is given in its own environment variables: SBATCH_PARTITION, SBATCH_ACCOUNT,
SBATCH_TIMELIMIT, SBATCH_GPUS.
"""

import math
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.launch.cluster import Task, log_error, make_task, stop_active_job
from experiment_kit.launch.jobs import GIB, LOST, Job

MAX_ARRAY = 1000  # jobs; Slurm allows no more without an administrator
_MINUTES = 24 * 60  # where SBATCH_TIMELIMIT says nothing


class SlurmCluster:
    """The jobs of submitit, whose files are in a folder; `local` runs them on this machine."""

    def __init__(self, folder: Path, address: str = "") -> None:
        self.submitit = import_submitit()
        if address not in ("", "local"):
            raise UserError(f"the launcher slurm takes the address local, or none, got {address!r}")
        if not address and shutil.which("sbatch") is None:
            raise UserError(
                "there is no sbatch on this machine: start the launcher slurm on a login node"
            )
        self.executor = self.submitit.AutoExecutor(folder, cluster=address or "slurm")
        self.jobs: dict[Any, Job] = {}

    def count_places(self) -> int:
        """Return the size of the largest array: Slurm decides what runs when."""
        return MAX_ARRAY if self.executor.cluster == "slurm" else os.cpu_count() or 1

    def check_job(self, job: Job) -> None:
        """Raise UserError where SBATCH_GPUS is less than the devices of a job."""
        given = os.environ.get("SBATCH_GPUS", "")
        number = re.search(r"\d+$", given)
        if number and int(number[0]) < job.devices:
            raise UserError(
                f"{job.name} has {job.devices} devices: set SBATCH_GPUS={job.devices}, got {given}"
            )

    def submit_jobs(self, jobs: Sequence[Job], period: float) -> list[Any]:
        """Submit an array for each number of devices, of the memory of its largest job."""
        handles: dict[Path, Any] = {}
        for devices in sorted({job.devices for job in jobs}):
            group = [job for job in jobs if job.devices == devices]
            memory = max(job.memory for job in group)
            self.executor.update_parameters(
                name="allpass",
                timeout_min=_MINUTES,
                mem_gb=math.ceil(memory / GIB),
                cpus_per_task=devices if devices > 1 else None,
            )
            tasks = [make_task(job, 0, period) for job in group]
            array = self.executor.map_array(SlurmTask(), tasks)
            handles |= {job.log: handle for job, handle in zip(group, array, strict=True)}
            self.jobs.update(zip(array, group, strict=True))
        return [handles[job.log] for job in jobs]

    def collect_ended(self, handles: Sequence[Any], seconds: float) -> dict[Any, int]:
        """Ask for each job, at most fifty a second, until one has ended or the time is over."""
        deadline = time.monotonic() + seconds
        while not (ended := [handle for handle in handles if handle.done()]):
            if time.monotonic() > deadline:
                break
            time.sleep(max(0.2, len(handles) / 50))
        return {handle: self._read_status(handle) for handle in ended}

    def _read_status(self, handle: Any) -> int:
        if not handle.paths.result_pickle.exists():  # for which submitit itself waits a while
            log_error(self.jobs[handle], RuntimeError(f"job {handle.job_id} left no result"))
            return LOST
        try:
            return handle.result()
        except Exception as error:  # submitit raises what the task raised
            log_error(self.jobs[handle], error)
            return LOST

    def cancel_tasks(self, handles: Sequence[Any]) -> None:
        """Cancel the jobs; Slurm sends SIGTERM to all their processes, which save."""
        for handle in handles:
            with suppress(OSError, self.submitit.core.utils.UncompletedJobError):
                handle.cancel()


class SlurmTask:
    """A function for submitit, which calls `checkpoint` before preemption and the time limit."""

    def __call__(self, task: Task) -> int:
        """Run the task with the cores that Slurm gave to it."""
        cores = int(os.environ.get("SLURM_CPUS_PER_TASK", 1))
        return replace(task, threads=max(1, cores // task.job.devices)).run()

    def checkpoint(self, task: Task) -> Any:
        """Let the run save, and ask for another start of the same task."""
        stop_active_job()
        return import_submitit().helpers.DelayedSubmission(self, task)


def import_submitit() -> Any:
    """Import submitit, which only this launcher needs."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise UserError(
            "the launcher slurm needs the package submitit: pip install 'allpass-kit[slurm]'"
        ) from error
    return submitit
