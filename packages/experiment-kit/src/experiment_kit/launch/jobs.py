"""Jobs: processes that train and measure runs. None outlives the process that starts it."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import psutil
import torch

from experiment_kit.errors import EXIT_STATUS, UserError
from experiment_kit.launch.fork_server import ForkServer
from experiment_kit.processes import end_with_parent
from experiment_kit.run import write_atomically

GIB = 2**30
DEFAULT_MEMORY = 2 * GIB  # a small training process, with a margin
RETRIES = 1  # of a job that failed, but for a mistake of the user
FAILURE = "failure.json"  # beside the log of a job that failed for good
HELD, LOST = 1001, 1002  # of a job on a cluster, beside the statuses of processes
_SENTENCES = {
    EXIT_STATUS: "stopped, the same command resumes it",
    HELD: "another launcher had",
    LOST: "its machine or worker was lost",
}


@dataclass(frozen=True)
class Job:
    """A process: its name for the reader, its arguments after `python`, its log, what it makes.

    It begins once the file `needs` is there, which another job makes, and once `memory` bytes and
    the places of `devices` are free: it starts a process for each device. With `server`, the
    package of an app, it is forked from a process that has imported it.
    """

    name: str
    arguments: Sequence[str]
    log: Path
    output: Path
    needs: Path | None = None
    memory: int = DEFAULT_MEMORY
    server: str = ""
    devices: int = 1


class Process(Protocol):
    """A process that was started: a `subprocess.Popen`, or a fork."""

    def wait(self) -> int:
        """Return its exit status once it has ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    on_end: Callable[[Job, int], None],
    on_start: Callable[[Job], None] = lambda job: None,
    on_retry: Callable[[Job, int], None] = lambda job, status: None,
    memory: int | None = None,
) -> None:
    """Run every job, in `workers` places; call `on_end` with its exit status.

    A job takes a place for each of its devices. All that run together need at most `memory` bytes,
    by default what is free now. A job that needs more of either runs alone. A job that fails is run
    once more; if it fails again, `failure.json` beside its log says so. A job whose `needs` no
    other job makes is never run. An exception, as that of a signal, is passed on as SIGTERM, so
    that each job saves and leaves, and then raised.
    """
    waiting = list(jobs)
    tries: Counter[Path] = Counter()
    running: dict[Process, tuple[Job, list[int]]] = {}
    ended: SimpleQueue[tuple[Process, int]] = SimpleQueue()
    budget = psutil.virtual_memory().available if memory is None else memory
    free = list(range(workers))
    with ExitStack() as stack:
        starter = stack.enter_context(JobStarter(count_threads()))
        stack.enter_context(_terminate_with_launcher(running))
        while waiting or running:
            used = sum(job.memory for job, _ in running.values())
            while free and (job := _find_ready(waiting, budget - used, len(free), not running)):
                waiting.remove(job)
                slots, free = free[: job.devices], free[job.devices :]
                process = starter.start(job, slots)
                running[process] = (job, slots)
                used += job.memory
                on_start(job)
                Thread(target=report_end, args=(process, ended), daemon=True).start()
            if not running:
                return
            process, status = ended.get()
            job, slots = running.pop(process)
            free += slots
            tries[job.log] += 1
            if has_failed(job, status) and status != UserError.code and tries[job.log] <= RETRIES:
                waiting.insert(0, job)
                on_retry(job, status)
                continue
            record_failure(job, status, tries[job.log])
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
    if status in _SENTENCES:
        return _SENTENCES[status]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status:
        return f"exit status {status}"
    return f"ended without {job.output.name}, see {job.log.name}"


def record_failure(job: Job, status: int, tries: int) -> None:
    """Write `failure.json` beside the log of a job that failed; remove that of one that did not."""
    path = job.log.with_name(FAILURE)
    if not has_failed(job, status):
        path.unlink(missing_ok=True)
        return
    reason = describe_failure(job, status)
    content = {"job": job.name, "reason": reason, "last_line": read_last_line(job.log)}
    write_atomically(path, json.dumps({**content, "log": job.log.name, "tries": tries}) + "\n")


def read_last_line(log: Path) -> str:
    """Return the last line of a log, "" where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 2**16))
            return file.read().decode(errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""


def _find_ready(jobs: Iterable[Job], memory: int, places: int, alone: bool) -> Job | None:
    """Return the first job that may begin: what it needs is there and free."""
    ready = (job for job in jobs if not job.needs or job.needs.is_file())
    return next(
        (job for job in ready if alone or (job.memory <= memory and job.devices <= places)), None
    )


def report_end(process: Process, ended: SimpleQueue[Any]) -> None:
    """Wait for a process, and put it with its status into a queue."""
    ended.put((process, process.wait()))


class JobStarter:
    """The starter of the processes of jobs, and of the servers that fork some of them.

    A server imports its app when the first of its jobs starts, and ends with the `with` block. On a
    machine with GPUs, whose driver survives no fork, and outside Linux every job is a new process.
    """

    def __init__(self, threads: int) -> None:
        self.environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        # else Lightning takes a task of Slurm for one device of several, and starts no others
        self.environment["SLURM_JOB_NAME"] = "interactive"
        self.servers: dict[str, ForkServer] = {}

    def __enter__(self) -> "JobStarter":
        return self

    def __exit__(self, *_: Any) -> None:
        for server in self.servers.values():
            server.close()

    def start(self, job: Job, slots: Sequence[int] = ()) -> Process:
        """Start a job on the GPUs of its slots, where there are GPUs, or on the first ones."""
        environment, has_gpus = dict(self.environment), torch.cuda.is_available()
        if has_gpus:
            every = ",".join(map(str, range(torch.cuda.device_count())))
            gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
            chosen = dict.fromkeys([*(gpus[slot % len(gpus)] for slot in slots), *gpus])
            environment["CUDA_VISIBLE_DEVICES"] = ",".join([*chosen][: job.devices])
        job.log.parent.mkdir(parents=True, exist_ok=True)
        if job.server and sys.platform == "linux" and not has_gpus:
            return self._find_server(job.server).start(job.arguments, job.log, environment)
        with job.log.open("ab") as log:
            return start_python(job.arguments, environment, stdout=log, stderr=subprocess.STDOUT)

    def _find_server(self, package: str) -> ForkServer:
        server = self.servers.get(package)
        if server is not None and not server.is_alive:
            server.close()
            server = None
        if server is None:
            start = partial(start_python, environment=self.environment)
            server = self.servers[package] = ForkServer(package, start)
        return server


def start_python(
    arguments: Sequence[str], environment: dict[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start `python ARGUMENTS`, which gets SIGTERM at the end of this process, on Linux."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
        **options,
    )


@contextmanager
def _terminate_with_launcher(running: Iterable[Process]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise


def default_workers() -> int:
    """Count the processes that run side by side here: one per GPU, else one per core."""
    return torch.cuda.device_count() if torch.cuda.is_available() else count_cores()


def count_threads() -> int:
    """Count the threads of each process: OMP_NUM_THREADS, else one, or a GPU's share of the cores.

    The number of processes does not matter: with other threads a CPU adds in another order, and
    the numbers of a run would depend on what ran beside it.
    """
    has_gpus = torch.cuda.is_available()
    share = count_cores() // torch.cuda.device_count() if has_gpus else 1
    return read_threads() or max(1, share)


def read_threads() -> int | None:
    """Read OMP_NUM_THREADS, None where it is not set.

    Raises UserError unless it is a positive number.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given and (not given.isdecimal() or int(given) < 1):
        raise UserError(f"OMP_NUM_THREADS must be a positive number, got {given!r}")
    return int(given) if given else None


def count_cores() -> int:
    """Count the cores that this process may use."""
    linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
