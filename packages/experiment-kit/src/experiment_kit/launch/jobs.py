"""Jobs: processes that train and measure runs. None outlives the process that starts it.

A signal lets each save first, a second one ends all at once: `supervision.py` says how.
A forkserver imports torch, Lightning and the apps once, and forks a process for every job. On a
machine with GPUs, whose driver survives no fork, and outside Linux, every job is a new process.
"""

import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from experiment_kit.errors import EXIT_STATUS, UserError
from experiment_kit.launch.supervision import LOST, SIGNALS, end_processes, run_supervised
from experiment_kit.run import write_atomically
from experiment_kit.run_files import warn_once

RETRIES = 1  # after a failure that is no mistake of the user
MAX_LOSSES = 10  # servers and machines that one run may lose
LOOK_AFTER = 10.0  # seconds between two looks at the progress of runs
FAILURE = "failure.json"  # beside the log of a job that failed for good
# a run imports these late
_PRELOADED = (
    "experiment_kit.training.callbacks",
    "lightning.pytorch.loggers.tensorboard",
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "tensorboard.compat.proto.event_pb2",
    "torch.utils.tensorboard",
)


Tries = Counter[tuple[Path, bool]]  # by log; True counts losses


@dataclass(frozen=True)
class Job:
    """A process: its name for the reader, `-m MODULE ...`, its log, and the file that it makes.

    It begins once the file `needs` is there, which another job makes, and once there is a free
    place for each of its devices.
    """

    name: str
    arguments: Sequence[str]
    log: Path
    output: Path
    needs: Path | None = None
    devices: int = 1


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    on_end: Callable[[Job, int], None],
    on_start: Callable[[Job], None] = lambda job: None,
    on_retry: Callable[[Job, int], None] = lambda job, status: None,
) -> None:
    """Run every job, in `workers` places, 0 for as many as suit; call `on_end` with its status.

    A job takes a place for each of its devices; one that needs more than there are runs alone. A
    job that fails is run once more, and one whose server died in a new process. A job whose `needs`
    no other job makes is never run. An exception, as that of a signal, is passed on as SIGTERM, so
    that each job saves and leaves; a second one kills them.
    """
    waiting, free = list(jobs), list(range(workers or default_workers()))
    tries: Tries = Counter()
    running: dict[Any, tuple[BaseProcess, Job, list[int]]] = {}
    try:
        while waiting or running:
            while free and (job := find_ready(waiting, None if not running else len(free))):
                waiting.remove(job)
                slots, free = free[: job.devices], free[job.devices :]
                is_lost = tries[job.log, True] > 0
                process = start_process(job, choose_devices(job, slots), waiting, is_lost)
                running[process.sentinel] = process, job, slots
                on_start(job)
            if not running:
                return
            for sentinel in wait([*running], LOOK_AFTER):
                process, job, slots = running.pop(sentinel)
                process.join()
                free += slots
                end_job(job, int(process.exitcode or 0), tries, waiting, on_end, on_retry)
            warn_hung(job for _, job, _ in running.values())
    finally:  # none runs, unless a signal ends this process
        end_processes([process for process, _, _ in running.values()])


def warn_hung(jobs: Iterable[Job]) -> None:
    """Name once each run that has made no step for `ALLPASS_HUNG_AFTER` seconds."""
    seconds = float(os.environ.get("ALLPASS_HUNG_AFTER", "600"))
    for job in jobs:
        path = job.log.with_name("progress.json")
        last = path.stat().st_mtime if path.is_file() else math.inf
        if time.time() - last > seconds:
            text = f"{job.name} has made no training step since {time.ctime(last)}: it hangs, or "
            warn_once(f"{text}validates for long; see {job.log}, and stop this launcher to end it")


def find_ready(jobs: Iterable[Job], places: int | None) -> Job | None:
    """Return the first job whose needs are there, and which fits into the places, if any bound."""
    ready = (job for job in jobs if not job.needs or job.needs.is_file())
    return next((job for job in ready if places is None or job.devices <= places), None)


def end_job(
    job: Job,
    status: int,
    tries: Tries,
    waiting: list[Job],
    on_end: Callable[[Job, int], None],
    on_retry: Callable[[Job, int], None],
) -> None:
    """End a job, or let it wait once more; `failure.json` says why it failed for good.

    The death of its server or machine is no try of a job.
    """
    is_lost = status == LOST
    tries[job.log, is_lost] += 1
    failed, path = has_failed(job, status), job.log.with_name(FAILURE)
    allowed = MAX_LOSSES if is_lost else RETRIES
    if failed and status != UserError.code and tries[job.log, is_lost] <= allowed:
        waiting.insert(0, job)
        on_retry(job, status)
        return
    if failed:
        last_line, reason = read_last_line(job.log), describe_failure(job, status)
        content = {"job": job.name, "reason": reason, "last_line": last_line, "log": job.log.name}
        write_atomically(path, json.dumps({**content, "tries": tries[job.log, is_lost]}) + "\n")
    else:
        path.unlink(missing_ok=True)
    on_end(job, status)


def has_failed(job: Job, status: int) -> bool:
    """Return True for a job that ended without what it makes."""
    return status != 0 or not job.output.is_file()


def describe_failure(job: Job, status: int) -> str:
    """Say why a process that ended made nothing.

    >>> job = Job("a", [], Path("runs/a/log.txt"), Path("runs/a/result.json"))
    >>> describe_failure(job, -9), describe_failure(job, 3)
    ('killed by SIGKILL', 'exit status 3')
    """
    if status == LOST:
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


def start_process(
    job: Job, environment: Mapping[str, str], others: Iterable[Job] = (), alone: bool = False
) -> BaseProcess:
    """Start a job with its output in its log; `others` may be started later by the same server.

    One that is started `alone` has no server whose death ends it.
    """
    threads = str(count_threads())
    context = _prepare_context([] if alone else [job, *others], threads)
    variables = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **environment}
    variables["SLURM_JOB_NAME"] = "interactive"  # else Lightning takes a task of Slurm for a device
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.with_name("progress.json").unlink(missing_ok=True)  # an earlier start left it
    arguments = [*job.arguments], str(job.log), variables, ignored
    process: BaseProcess = context.Process(target=run_supervised, args=arguments)  # type: ignore[attr-defined]
    try:
        process.start()
    except (EOFError, OSError):  # the server has just died
        return start_process(job, environment, alone=True)
    return process


def _prepare_context(jobs: Sequence[Job], threads: str) -> BaseContext:
    """Return the context that starts processes, with a server that has imported their modules."""
    if not jobs or sys.platform != "linux" or torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    packages = dict.fromkeys(job.arguments[1] for job in jobs)
    context.set_forkserver_preload([*(f"{name}.__main__" for name in packages), *_PRELOADED])
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in SIGNALS]
    os.environ["OMP_NUM_THREADS"] = threads  # torch reads it as the server imports it
    try:  # the server inherits what is ignored, and so ends after its jobs have saved
        ensure_running()
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    return context


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
