"""Command lines of Python in processes that have imported what this one has.

A new process takes seven seconds to import torch and an app, a fork none. A fork cannot train once
this process has used a GPU, and is not safe on macOS: new processes take its place there.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import psutil
import torch
from experiment_kit.__main__ import main
from lightning_utilities.core.rank_zero import rank_zero_only

NEEDS_SPAWN = sys.platform != "linux" or torch.accelerator.is_available()
HUNG = 124  # exit status of a process that had to be killed, as of timeout(1)
CONTEXT = multiprocessing.get_context("spawn" if NEEDS_SPAWN else "fork")


def run_allpass(*words: str) -> None:
    """Run a command line of allpass in this process."""
    with patch.object(sys, "argv", ["allpass", *words]):
        main()


@contextmanager
def start_python(
    arguments: Sequence[str], log: Path, folder: str | Path = ".", **environment: str
) -> Iterator[BaseProcess]:
    """Start `python ARGUMENTS`, a module or a file, and kill at the end what it has left."""
    process = CONTEXT.Process(target=_run_python, args=([*arguments], log, folder, environment))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        for child in list_session(process.pid):
            with suppress(psutil.Error):
                child.kill()
        process.join()


@contextmanager
def start_ranks(arguments: Sequence[str], log: Path, count: int = 2) -> Iterator[list[BaseProcess]]:
    """Start the processes of one run on several devices, in the environment that torchrun makes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    shared |= {"TORCHELASTIC_RUN_ID": "tests"}
    with ExitStack() as stack:
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        yield [stack.enter_context(start_python(arguments, log, **shared | r)) for r in ranks]


def wait_for_end(process: BaseProcess, seconds: float = 600) -> int:
    """Return the exit status; HUNG if it, or anything that it started, is left."""
    process.join(seconds)
    deadline = time.monotonic() + 20
    while process.exitcode is not None and time.monotonic() < deadline:
        if not list_session(process.pid):
            return process.exitcode
        time.sleep(0.05)
    return HUNG


def list_session(session: int) -> list[psutil.Process]:
    """List the processes that a process and its descendants started."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(OSError, psutil.Error):
            is_ended = process.info["status"] == psutil.STATUS_ZOMBIE
            if os.getsid(process.pid) == session and not is_ended:
                found.append(process)
    return found


def _run_python(arguments: list[str], log: Path, folder: str | Path, environment: dict) -> None:
    os.setsid()
    # a test before this one may have started a fork server, which is no child of this process
    forkserver._forkserver._forkserver_pid = None
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    warnings.simplefilter("ignore")
    os.chdir(folder)
    os.environ.pop("DATA_DIR", None)
    os.environ.update({"OMP_NUM_THREADS": "1"} | environment)
    rank_zero_only.rank = int(environment.get("RANK", 0))  # which is read at the import
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
