"""Processes of one task: forked from this one, which has imported the apps, or of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import psutil

from tests.robustness.child import Task, run_task

ROOT = Path(__file__).parents[2]
HUNG = 124  # exit status of a process that had to be killed, as of timeout(1)
SECONDS = 300  # a child that takes longer hangs
PROCESS_SECONDS = 600  # one that imports everything, on a loaded machine, and its children


def run_forked(task: Task) -> int:
    """Run a task in a child; return its exit status, negative for a signal."""
    process = get_context("fork").Process(target=run_task, args=(task,))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return HUNG
    return process.exitcode or 0


def start_process(
    command: Sequence[str], folder: Path, log: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start Python in a session of its own, so that all its descendants can be found."""
    environment = {key: value for key, value in os.environ.items() if key != "DATA_DIR"}
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            cwd=folder,
            env={**environment, **(variables or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run_process(task: Task) -> int:
    """Run a task in a process of its own, and the ranks that it starts."""
    command = ["-m", "tests.robustness.child", json.dumps(asdict(task))]
    return wait_for_end(start_process(command, Path(task.folder), task.log))


def wait_for_end(process: subprocess.Popen[bytes], seconds: float = PROCESS_SECONDS) -> int:
    """Return the exit status; HUNG if it, or anything that it started, had to be killed."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        status = HUNG
    deadline = time.monotonic() + 20
    while list_session(process.pid) and status != HUNG:
        if time.monotonic() > deadline:
            status = HUNG
        time.sleep(0.05)
    kill_session(process.pid)
    process.wait()
    return status


def list_session(session: int) -> list[psutil.Process]:
    """List the processes that a process and its descendants started."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(OSError, psutil.Error):
            is_ended = process.info["status"] == psutil.STATUS_ZOMBIE
            if os.getsid(process.pid) == session and not is_ended:
                found.append(process)
    return found


def kill_session(session: int) -> None:
    for process in list_session(session):
        with suppress(psutil.Error):
            process.kill()
