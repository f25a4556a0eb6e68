"""A process that imports an app once, and forks a child for every run of it.

    python -m experiment_kit.launch.fork_server DESCRIPTOR PACKAGE

A new Python process takes seconds to import torch, Lightning and an app; a fork has them already.
The server itself runs no thread and computes nothing, so that a fork is as a new process.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from experiment_kit.processes import end_with_parent

# what the run of an app imports late
_PRELOADED = (
    "experiment_kit.training.callbacks",
    "lightning.pytorch.loggers.tensorboard",
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "tensorboard.compat.proto.event_pb2",
    "torch.utils.tensorboard",
)
_ENDED = -signal.SIGKILL  # the status of a child whose server is gone


class ForkedProcess:
    """A child of a server, seen from the launcher."""

    def __init__(self, server: "ForkServer", number: int) -> None:
        self.server, self.number = server, number
        self.status, self.ended = 0, Event()

    def wait(self) -> int:
        """Return the exit status of the child once it has ended; negative for a signal."""
        self.ended.wait()
        return self.status

    def terminate(self) -> None:
        """Send SIGTERM to the child."""
        self.server.send(("terminate", self.number))

    def kill(self) -> None:
        """Send SIGKILL to the child."""
        self.server.send(("kill", self.number))


class ForkServer:
    """The launcher's end of a server: `start_process(arguments, pass_fds=)` starts its process."""

    def __init__(self, package: str, start_process: Callable[..., Any]) -> None:
        self.connection, remote = multiprocessing.Pipe()
        self.children: dict[int, ForkedProcess] = {}
        self.lock, self.is_alive = Lock(), True
        number = remote.fileno()
        arguments = ["-m", __spec__.name, str(number), package]
        self.process = start_process(arguments, pass_fds=[number])
        remote.close()
        self.receiver = Thread(target=self._receive_ends, daemon=True)
        self.receiver.start()

    def start(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> ForkedProcess:
        """Fork a child that runs `python ARGUMENTS` with its output in the log."""
        with self.lock:
            child = ForkedProcess(self, len(self.children))
            self.children[child.number] = child
        self.send(("start", child.number, list(arguments), str(log), dict(environment)))
        return child

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the server; one that is gone has ended all its children."""
        with self.lock:
            try:
                self.connection.send(message)
            except OSError:
                self._end_all()

    def close(self) -> None:
        """End the server and what is left of its children."""
        self.send(("end", 0))
        self.process.wait()
        self.receiver.join()
        self.connection.close()

    def _receive_ends(self) -> None:
        try:
            while True:
                number, status = self.connection.recv()
                self.children[number].status = status
                self.children[number].ended.set()
        except (EOFError, OSError):
            self._end_all()

    def _end_all(self) -> None:
        self.is_alive = False
        for child in list(self.children.values()):  # another thread may start one
            if not child.ended.is_set():
                child.status = _ENDED
                child.ended.set()


def serve(connection: Connection, package: str) -> None:
    """Import the package, then fork a child for each message until the launcher has gone."""
    # a terminal's interrupt reaches the whole group: it is for the launcher and the children
    inherited: dict[int, Any] = {
        n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)
    }
    inherited[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    import_module(f"{package}.__main__")
    if getattr(import_module(package), "APP", None):  # which makes some apps import their classes
        for name in _PRELOADED:
            import_module(name)
    children: dict[int, BaseProcess] = {}
    try:
        _fork_children(connection, inherited, children)
    except (EOFError, OSError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end this loop
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.join()


def _fork_children(
    connection: Connection, signals: Mapping[int, Any], children: dict[int, BaseProcess]
) -> None:
    context = multiprocessing.get_context("fork")
    while True:
        sentinels: dict[Any, int] = {child.sentinel: n for n, child in children.items()}
        for ready in wait([*sentinels, connection]):
            if ready is not connection:
                child = children.pop(sentinels[ready])
                child.join()
                connection.send((sentinels[ready], child.exitcode))
                continue
            kind, number, *content = connection.recv()
            if kind == "end":
                return
            if kind == "start":
                arguments = (connection, signals, *content)
                children[number] = context.Process(target=run_command, args=arguments)
                children[number].start()
            elif number in children:  # terminate or kill
                getattr(children[number], kind)()


def run_command(
    connection: Connection,
    signals: Mapping[int, Any],
    arguments: Sequence[str],
    log: str,
    environment: Mapping[str, str],
) -> None:
    """Run `python -m MODULE ...` in this process, a fork, as a new process would."""
    end_with_parent()
    connection.close()  # the server's: the launcher must see its end
    for number, handler in signals.items():
        signal.signal(number, handler)
    os.environ.update(environment)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    _, module, *options = arguments
    sys.argv = [module, *options]
    sys.modules.pop(f"{module}.__main__", None)  # runpy warns of one that is imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), sys.argv[2])
