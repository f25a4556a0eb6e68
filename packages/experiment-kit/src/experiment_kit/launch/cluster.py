"""Jobs on many machines that share a file system: the tasks there, and the queue here.

A task holds the lease of its run's folder while the run is written. Several launchers may therefore
have the same plan: each leaves alone what another one runs, and takes it if that one dies.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from experiment_kit.errors import EXIT_STATUS, UserError
from experiment_kit.launch.jobs import (
    HELD,
    LOST,
    RETRIES,
    Job,
    JobStarter,
    Process,
    has_failed,
    record_failure,
    report_end,
)
from experiment_kit.launch.lease import PERIOD, Lease, is_held, refresh_folder, take_lease

MAX_LOSSES = 10  # of machines under one job, before it counts as failed
_PASSED_ON = ("DATA_DIR", "HF_HOME", "HF_HUB_OFFLINE", "PYTHONPATH")  # to the other machines


@dataclass(frozen=True)
class Task:
    """A job that any machine can run: whole paths, its folder, the cores of a device, variables."""

    job: Job
    folder: str
    threads: int
    environment: Mapping[str, str]
    period: float = PERIOD

    def run(self) -> int:
        """Run the job here under the lease of its folder; return its exit status, HELD or LOST."""
        os.chdir(self.folder)
        os.environ.update(self.environment)
        return run_leased_job(self.job, find_starter(self.threads), self.period)


def make_task(job: Job, threads: int, period: float) -> Task:
    """Make the task of a job of this launcher."""
    job = replace(job, log=job.log.absolute(), output=job.output.absolute(), needs=None)
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return Task(job, os.getcwd(), threads, given, period)


@cache
def find_starter(threads: int) -> JobStarter:
    """Return what starts the jobs of this process, whose server of an app serves all of them."""
    return JobStarter(threads)


_active: list[tuple[Process, Lease]] = []


def run_leased_job(job: Job, starter: JobStarter, period: float = PERIOD) -> int:
    """Run a job while this process has the lease of its folder; return its exit status.

    HELD says that another process has it; LOST, that the lease was lost and the job killed.
    """
    if job.output.is_file():
        return 0
    lease = take_lease(job.log.parent, period)
    if lease is None:
        return HELD
    with lease:
        if job.output.is_file():  # the holder before has finished it
            return 0
        process = starter.start(job)
        _active.append((process, lease))
        try:
            return _wait_for_end(process, lease)
        except BaseException:  # of a signal: let it save
            process.terminate()
            process.wait()
            raise
        finally:
            _active.clear()


def _wait_for_end(process: Process, lease: Lease) -> int:
    ended: SimpleQueue[tuple[Process, int]] = SimpleQueue()
    Thread(target=report_end, args=(process, ended), daemon=True).start()
    while not lease.is_lost:
        with suppress(Empty):
            return ended.get(timeout=min(1.0, lease.period / 4))[1]
    process.kill()  # it must not save either: the folder is another's
    process.wait()
    return LOST


def stop_active_job() -> None:
    """Let the job of this process save and end, and release its lease."""
    for process, lease in _active:
        process.terminate()
        process.wait()
        lease.renew(released=True)


class Cluster(Protocol):
    """Machines that run tasks; a handle is what the cluster calls a task by."""

    def count_places(self) -> int:
        """Count the devices of the tasks that run side by side."""

    def check_job(self, job: Job) -> None:
        """Raise UserError for a job whose devices no machine has."""

    def submit_jobs(self, jobs: Sequence[Job], period: float) -> list[Any]:
        """Submit the tasks of jobs and return their handles."""

    def collect_ended(self, handles: Sequence[Any], seconds: float) -> dict[Any, int]:
        """Return what has ended, with its status; wait so long for the first."""

    def cancel_tasks(self, handles: Sequence[Any]) -> None:
        """Let the tasks save, end them, and wait for that."""


@dataclass
class ClusterQueue:
    """The jobs of one launcher on a cluster; callbacks are those of `run_jobs`."""

    cluster: Cluster
    jobs: Sequence[Job]
    on_end: Callable[[Job, int], None]
    on_start: Callable[[Job], None] = lambda job: None
    on_retry: Callable[[Job, int], None] = lambda job, status: None
    period: float = PERIOD
    running: dict[Any, Job] = field(default_factory=dict)
    tries: Counter[Path] = field(default_factory=Counter)
    losses: Counter[Path] = field(default_factory=Counter)
    next_looks: dict[Path, float] = field(default_factory=dict)

    def run(self, workers: int = 0) -> None:
        """Run all jobs in `workers` places, or in all that the cluster has.

        As `run_jobs`, it tries a job that failed once more. A job whose machine is lost, or which
        was stopped there, goes on elsewhere. Those of another launcher are waited for.
        """
        self.waiting = list(self.jobs)
        for job in self.waiting:
            self.cluster.check_job(job)
            job.log.parent.mkdir(parents=True, exist_ok=True)
        if self.waiting:
            refresh_folder(self.waiting[0].log.parent)  # a read-only folder is told before work
        with self._cancel_with_launcher():
            while self.waiting or self.running:
                used = sum(job.devices for job in self.running.values())
                self._submit_ready((workers or self.cluster.count_places()) - used)
                if not self.running and not any(map(_can_begin, self.waiting)):
                    return
                if not self.running:
                    time.sleep(self.period)
                    continue
                ended = self.cluster.collect_ended([*self.running], self.period)
                for handle, status in ended.items():
                    self._end_job(self.running.pop(handle), status)

    def _submit_ready(self, places: int) -> None:
        ready: list[Job] = []
        for job in list(self.waiting):
            alone = not self.running and not ready
            if places < job.devices and not alone:
                continue
            if not _can_begin(job) or time.monotonic() < self.next_looks.get(job.log, 0):
                continue
            if job.output.is_file():  # another launcher has finished it
                self.waiting.remove(job)
                self.on_end(job, 0)
            elif is_held(job.log.parent, self.period):
                self.next_looks[job.log] = time.monotonic() + self.period
            else:
                self.waiting.remove(job)
                ready.append(job)
                places -= job.devices
        if ready:
            handles = self.cluster.submit_jobs(ready, self.period)
            self.running.update(zip(handles, ready, strict=True))
        for job in ready:
            self.on_start(job)

    def _end_job(self, job: Job, status: int) -> None:
        if status == HELD:
            self.next_looks[job.log] = time.monotonic() + self.period
            again = True
        elif status in (LOST, EXIT_STATUS):
            self.losses[job.log] += 1
            again = self.losses[job.log] <= MAX_LOSSES
        else:
            if status == 0 and not job.output.is_file():
                refresh_folder(job.output.parent)  # NFS may remember that there was no such file
            self.tries[job.log] += 1
            again = has_failed(job, status) and status != UserError.code
            again = again and self.tries[job.log] <= RETRIES
        if again:
            self.waiting.insert(0, job)
            self.on_retry(job, status)
            return
        record_failure(job, status, self.tries[job.log] + self.losses[job.log])
        self.on_end(job, status)

    @contextmanager
    def _cancel_with_launcher(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.cluster.cancel_tasks([*self.running])
            raise


def _can_begin(job: Job) -> bool:
    return job.needs is None or job.needs.is_file()


def log_error(job: Job, error: BaseException) -> None:
    """Add to the log of a job why its task ended, where its process could not."""
    line = next(iter(str(error).strip().splitlines()[::-1]), "")
    with suppress(OSError), job.log.open("a", encoding="utf-8") as log:
        log.write(f"{type(error).__name__}: {line}\n")
