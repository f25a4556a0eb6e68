"""The process between a launcher and a run, which ends the run and all that the run has started.

SIGTERM asks a run to save and end. If it has not ended `ALLPASS_GRACE` seconds later, because it
hangs or is stopped, it is killed. SIGQUIT kills it at once. When the launcher ends, even by kill
-9, the run is asked to save; on Linux, when this process ends, the run is killed.

A forkserver imports torch, Lightning and the apps once, and forks a process for every run. On a
machine with GPUs, whose driver survives no fork, and outside Linux, every run is a new process.
"""

import ctypes
import faulthandler
import math
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import torch

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORKER_LOST = 255  # exit status where the server or the machine died; no run ends with it
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # options of prctl
_POLL = 0.05  # seconds
# a run imports these late
_PRELOADED = (
    "experiment_kit.training.callbacks",
    "lightning.pytorch.loggers.tensorboard",
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "tensorboard.compat.proto.event_pb2",
    "torch.utils.tensorboard",
)


def start_process(
    arguments: Sequence[str], log: Path, environment: dict[str, str], packages: Sequence[str] = ()
) -> BaseProcess:
    """Start `python ARGUMENTS` with its output in a log.

    A server that has imported `packages` forks it. Without packages it is a new process, which the
    death of no server ends. `environment` has OMP_NUM_THREADS.
    """
    context = _prepare_context(packages, environment["OMP_NUM_THREADS"])
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    variables["SLURM_JOB_NAME"] = "interactive"  # else Lightning takes a task of Slurm for a device
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.with_name("progress.txt").unlink(missing_ok=True)  # an earlier start left it
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=_run_supervised, args=([*arguments], str(log), variables, ignored)
    )
    try:
        process.start()
    except (EOFError, OSError):  # the server has just died
        return start_process(arguments, log, environment)
    return process


def _prepare_context(packages: Sequence[str], threads: str) -> BaseContext:
    """Return the context that starts processes, with a server that has imported packages."""
    if not packages or sys.platform != "linux" or torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    mains = (f"{name}.__main__" for name in dict.fromkeys(packages))
    context.set_forkserver_preload([*mains, *_PRELOADED])
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in SIGNALS]
    os.environ["OMP_NUM_THREADS"] = threads  # torch reads it as the server imports it
    try:  # the server inherits ignored signals, and so ends after its jobs have saved
        ensure_running()
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    return context


def read_grace() -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    return float(os.environ.get("ALLPASS_GRACE", "60"))


def end_processes(processes: Sequence[BaseProcess]) -> None:
    """Let processes save and end; kill them at once if a second signal raises an exception here."""
    left, deadline = [*processes], time.monotonic() + read_grace() + 10
    try:
        while left and time.monotonic() < deadline:
            for process in left:
                process.terminate()  # again: one that has just started may have missed it
            left[0].join(0.5)
            left = [process for process in left if process.is_alive()]
    finally:
        for process in left:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(int(process.pid or 0), signal.SIGQUIT)
        for process in left:
            process.join(2)
            process.kill()  # if it is stopped itself; its run ends with it


def _run_supervised(
    arguments: Sequence[str], log: str, environment: dict[str, str], ignored: list[signal.Signals]
) -> None:
    """Run `python -m MODULE ...` in a child of this process as a new process would."""
    os.environ.clear()
    os.environ.update(environment)
    _control_process(_CHILD_SUBREAPER, 1)
    if child := os.fork():
        _control_process(_PARENT_DEATH_SIGNAL, signal.SIGTERM)  # when the server of forks ends
        _supervise_run(child)
    _control_process(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for number in SIGNALS:
        handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else handler)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(2)  # where a library crashed
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv, module = list(arguments[1:]), arguments[1]
    sys.modules.pop(f"{module}.__main__", None)  # runpy warns of one that is imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _supervise_run(run: int) -> NoReturn:
    """Wait for a run, and end as it ended."""
    launcher, deadline = multiprocessing.parent_process(), math.inf
    received: list[int] = []
    for number in (*SIGNALS, signal.SIGQUIT):
        signal.signal(number, lambda number, _: received.append(number))
    ended = status = 0
    while ended != run:
        if deadline == math.inf and (received or not launcher or not launcher.is_alive()):
            deadline = time.monotonic() + read_grace()
            os.kill(run, signal.SIGTERM)
            os.kill(run, signal.SIGCONT)  # a stopped process receives no signal
        if signal.SIGQUIT in received or time.monotonic() > deadline:
            os.kill(run, signal.SIGKILL)
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            time.sleep(_POLL)
    _kill_children()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(1 if code == WORKER_LOST else code)


def _kill_children() -> None:
    """Kill what a run has left behind: this process is the parent of it all, on Linux."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):  # none is left
        while True:
            for number in children.read_text().split():
                os.kill(int(number), signal.SIGKILL)
            os.waitpid(-1, 0)


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
