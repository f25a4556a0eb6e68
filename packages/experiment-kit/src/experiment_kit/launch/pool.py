"""Run processes side by side on one machine, so that none outlives the one that started them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

GIB_EACH = 2  # what one small training process takes, with room to spare
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """A process to run: what a person calls it, its arguments after `python`, where it logs."""

    name: str
    arguments: Sequence[str]
    log: Path


def slots() -> int:
    """How many processes fit here: one a GPU, else one a core as far as memory goes.

    >>> slots() >= 1
    True
    """
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    memory = psutil.virtual_memory().available // (GIB_EACH * 2**30)
    return max(1, min(cores(), memory))


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1


def run(jobs: Sequence[Job], at_once: int, ended: Callable[[Job, int], None]) -> None:
    """Run every job, `at_once` of them at a time; tell `ended` each exit status.

    SIGTERM or an interrupt is passed on, so that each job saves and leaves, and then raised.
    """
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], tuple[Job, int]] = {}
    # of the machine, not of what is left to do: a resumed job must add in the same order
    threads = max(1, cores() // at_once)
    free = list(range(at_once))
    with _forwarding(running):
        while waiting or running:
            while waiting and free:
                slot = free.pop(0)
                job = waiting.pop(0)
                running[_start(job, slot, threads)] = (job, slot)
            for process in [process for process in running if process.poll() is not None]:
                job, slot = running.pop(process)
                free.append(slot)
                ended(job, process.returncode)
            time.sleep(0.1)


def _start(job: Job, slot: int, threads: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if torch.cuda.is_available():
        allotted = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(
            map(str, range(torch.cuda.device_count()))
        )
        mine = allotted.split(",")
        environment["CUDA_VISIBLE_DEVICES"] = mine[slot % len(mine)]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *job.arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    # kill -9 on the launcher must not leave trainings behind that nobody waits for
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _forwarding(running: dict[subprocess.Popen[bytes], Any]) -> Iterator[None]:
    def stop(number: int, _: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
