"""Jobs: processes that train and measure runs, and that end with the process that starts them.

After a signal each of them saves first; a second signal ends all at once: see `supervision.py`.
"""

import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from experiment_kit.errors import EXIT_STATUS, UserError
from experiment_kit.launch.supervision import WORKER_LOST, end_processes, start_process

RETRIES, MAX_LOSSES = 1, 10  # more starts after a failure; after the death of a server or a machine
LOOK_AFTER = 10.0  # seconds until free places are counted again


@dataclass(frozen=True)
class Job:
    """A process `-m MODULE ...`, its log, and the file that it makes, once `needs` is there."""

    name: str
    arguments: Sequence[str]
    log: Path
    output: Path
    needs: Path | None = None
    devices: int = 1


class Places:
    """The places of this machine, by default one for each GPU, or for each core without a GPU."""

    def __init__(self, workers: int = 0) -> None:
        self.free = list(range(workers or default_workers()))
        self.running: dict[Any, Job] = {}
        self.processes: dict[Any, tuple[BaseProcess, list[int]]] = {}

    def count_free(self) -> int:
        """Count the places that no job has."""
        return len(self.free)

    def start_job(self, job: Job, others: Sequence[Job], is_lost: bool) -> None:
        """Start a job by a server that has imported for all jobs, unless that died (`is_lost`)."""
        slots, self.free = self.free[: job.devices], self.free[job.devices :]
        environment = {"OMP_NUM_THREADS": str(count_threads()), **choose_devices(job, slots)}
        packages = [] if is_lost else [j.arguments[1] for j in (job, *others)]
        process = start_process(job.arguments, job.log, environment, packages)
        self.running[process.sentinel] = job
        self.processes[process.sentinel] = process, slots

    def collect_ended(self) -> Iterable[tuple[Job, int]]:
        """Wait a while, and yield the jobs that have ended, with their exit statuses."""
        for sentinel in wait([*self.running], LOOK_AFTER):
            process, slots = self.processes.pop(sentinel)
            process.join()
            self.free += slots
            yield self.running.pop(sentinel), int(process.exitcode or 0)

    def stop_jobs(self) -> None:
        """Let each job save and end; a second signal kills all."""
        end_processes([process for process, _ in self.processes.values()])


def run_jobs(
    jobs: Sequence[Job], places: Places, on_end: Callable[[Job, int], None],
    on_start: Callable[[Job], None] = lambda job: None,
    on_retry: Callable[[Job, int], None] = lambda job, status: None,
) -> None:  # fmt: skip
    """Run every job once there are places for its devices; call `on_end` with its status.

    A job that needs more places than exist runs alone. One that fails is run once more. One whose
    `needs` are never made is not run.
    """
    waiting, tries = list(jobs), Counter[tuple[Path, bool]]()  # True counts losses
    try:
        while waiting or places.running:
            free = places.count_free() if places.running else math.inf
            ready = (job for job in waiting if not job.needs or job.needs.is_file())
            if job := next((job for job in ready if job.devices <= free), None):
                waiting.remove(job)
                places.start_job(job, waiting, is_lost=tries[job.log, True] > 0)
                on_start(job)
                continue
            if not places.running:
                return
            for job, status in places.collect_ended():
                is_lost = status == WORKER_LOST  # the death of a server or a machine is no try
                tries[job.log, is_lost] += 1
                may_retry = tries[job.log, is_lost] <= (MAX_LOSSES if is_lost else RETRIES)
                if has_failed(job, status) and status != UserError.code and may_retry:
                    waiting.insert(0, job)
                    on_retry(job, status)
                else:
                    on_end(job, status)
    finally:  # none runs, unless a signal ends this process
        places.stop_jobs()


def has_failed(job: Job, status: int) -> bool:
    """Return True for a job that ended without what it makes."""
    return status != 0 or not job.output.is_file()


def describe_failure(job: Job, status: int) -> str:
    """Say why a process that ended made nothing."""
    if status == WORKER_LOST:
        return "its server or machine died"
    if status == EXIT_STATUS:
        return "stopped, the same command resumes it"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status:
        return f"exit status {status}"
    return f"ended without {job.output.name}, see {job.log.name}"


def read_last_line(log: Path) -> str:
    """Return the last line of a log, "" where there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2**16))
        return file.read().decode(errors="replace").strip().rpartition("\n")[2]


def choose_devices(job: Job, slots: Sequence[int]) -> dict[str, str]:
    """Return the variable that shows a job the GPUs of its slots; nothing without GPUs."""
    if not torch.cuda.is_available():
        return {}
    every = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
    chosen = dict.fromkeys([*(gpus[slot % len(gpus)] for slot in slots), *gpus])
    return {"CUDA_VISIBLE_DEVICES": ",".join([*chosen][: job.devices])}


def default_workers() -> int:
    """Count the processes that run side by side here: one per GPU, else one per core."""
    return torch.cuda.device_count() if torch.cuda.is_available() else count_cores()


def count_threads() -> int:
    """Count the threads of each process: OMP_NUM_THREADS, else one, or a GPU's share of the cores.

    With other threads a CPU adds in another order: numbers would depend on what ran beside a run.
    """
    if given := os.environ.get("OMP_NUM_THREADS", ""):
        if not given.isdecimal():
            raise UserError(f"OMP_NUM_THREADS must be a number, got {given!r}")
        return int(given)
    return max(1, count_cores() // torch.cuda.device_count()) if torch.cuda.is_available() else 1


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
