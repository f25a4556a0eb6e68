"""Command lines of Python in processes that have imported what this one has.

A new process takes seven seconds to import torch and an app, a fork none. A fork cannot train once
this process has used a GPU, and is not safe on macOS: new processes take its place there.
"""

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from lightning_utilities.core.rank_zero import rank_zero_only

NEEDS_SPAWN = sys.platform != "linux" or torch.accelerator.is_available()
CONTEXT = multiprocessing.get_context("spawn" if NEEDS_SPAWN else "fork")


@contextmanager
def start_python(arguments: Sequence[str], log: Path, **environment: str) -> Iterator[BaseProcess]:
    """Start `python ARGUMENTS`, a module or a file, and kill at the end what it has left."""
    process = CONTEXT.Process(target=_run_python, args=(list(arguments), log, environment))
    process.start()
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


@contextmanager
def start_ranks(arguments: Sequence[str], log: Path, count: int = 2) -> Iterator[list[BaseProcess]]:
    """Start the processes of one run on several devices, in the environment that torchrun makes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    shared |= {name: str(count) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    shared |= {"TORCHELASTIC_RUN_ID": "tests"}
    with ExitStack() as stack:
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        yield [stack.enter_context(start_python(arguments, log, **shared | r)) for r in ranks]


def run_python(arguments: Sequence[str], log: Path, seconds: float) -> int | None:
    """Run `python ARGUMENTS` to its end, and return its exit status; None after so many seconds."""
    with start_python(arguments, log) as process:
        process.join(seconds)
        return process.exitcode


def _run_python(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    os.setpgid(0, 0)
    # a test before this one may have started a fork server, which is no child of this process
    forkserver._forkserver._forkserver_pid = None
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    warnings.simplefilter("ignore")
    os.environ.update(environment, OMP_NUM_THREADS="1")
    rank_zero_only.rank = int(environment.get("RANK", 0))  # which is read at the import
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
