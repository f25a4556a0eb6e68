"""A child process that runs an app's command line, and ends or fails at an exact moment.

Run as a program, `python -m tests.robustness.child '<task as JSON>'`, it is a process of its own,
and so are the other ranks that Lightning starts by the same command line.
"""

import errno
import io
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from experiment_kit import cli
from lightning.pytorch import Callback
from torch.utils.tensorboard import SummaryWriter

# by the function that is counted
FILE_EVENTS = {"replace": "rename", "rename": "rename", "fsync": "fsync", "unlink": "unlink",
               "remove": "unlink"}  # fmt: skip
BATCHES = {f"on_{name}_batch_start": f"{part} batch" for name, part in
           (("train", "training"), ("validation", "validation"), ("test", "test"))}  # fmt: skip
PLACES = ("fit_start", "train_start", "train_epoch_start", "train_epoch_end", "validation_start",
          "validation_end", "train_end", "fit_end", "test_start", "test_end")  # fmt: skip
HOOKS = BATCHES | {f"on_{place}": "hook" for place in PLACES}


@dataclass(frozen=True)
class Moment:
    """The n-th event of a kind, and what happens before it: a signal, or a failing system call.

    `action` is a signal (KILL, TERM, ...), an error (ENOSPC, EIO) or WORKER, the end of the
    processes that load data. Only the given rank counts.
    """

    event: str
    number: int
    action: str
    rank: int = 0


@dataclass(frozen=True)
class Task:
    """A command line of an app, in a folder; events are counted into the file `counts`."""

    app: str
    arguments: tuple[str, ...]
    folder: str
    moment: Moment | None = None

    @property
    def log(self) -> Path:
        return Path(self.folder) / "log.txt"

    @property
    def counts(self) -> Path:
        return Path(self.folder) / "counts.json"

    @property
    def mark(self) -> Path:
        """The file that says that the moment came."""
        return Path(self.folder) / "reached"


class EventCounter(Callback):
    """Count file operations and hooks of the main thread, and act before one of them."""

    def __init__(self, moment: Moment | None, mark: Path) -> None:
        self.moment, self.mark, self.counts = moment, mark, Counter[str]()
        self.rank = int(os.environ.get("LOCAL_RANK", 0))
        for hook, event in HOOKS.items():
            setattr(self, hook, partial(self.count_hook, event))

    def count_hook(self, event: str, *_: Any, **__: Any) -> None:
        self.count_event(event)

    def count_event(self, event: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.counts[event] += 1
        here = event, self.counts[event], self.rank
        if self.moment and (self.moment.event, self.moment.number, self.moment.rank) == here:
            os.close(os.open(self.mark, os.O_CREAT))
            act(self.moment.action)

    def count_calls(self, event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if event != "open" or is_written(*args, **options):
                self.count_event(event)
            return function(*args, **options)

        return counted


def is_written(_: Any, mode: Any = "r", *__: Any, **___: Any) -> bool:
    return isinstance(mode, str) and bool({*mode} & {*"wax+"})


def act(action: str) -> None:
    """Send the signal to this process, end its children, or raise the error."""
    if action == "WORKER":
        for child in psutil.Process().children():
            child.kill()
    elif hasattr(errno, action):
        number = getattr(errno, action)
        raise OSError(number, os.strerror(number))
    else:
        os.kill(os.getpid(), getattr(signal, f"SIG{action}"))


def run_task(task: Task) -> None:
    """Run the command line in this process; its output goes to the task's log."""
    enter_folder(task)
    counter = EventCounter(task.moment, task.mark)
    for name, event in FILE_EVENTS.items():
        setattr(os, name, counter.count_calls(event, getattr(os, name)))
    io.open = counter.count_calls("open", io.open)  # what pathlib calls
    make_callbacks = cli.default_callbacks
    cli.default_callbacks = lambda *args, **options: [counter, *make_callbacks(*args, **options)]
    # drawing takes as long as the rest of a small run, and writes no file of its own
    SummaryWriter.add_figure = lambda *_, **__: None
    try:
        cli.run_app(import_module(f"attention_{task.app}").APP, ["fit", *task.arguments])
    finally:
        if counter.rank == 0:
            task.counts.write_text(json.dumps(counter.counts))


def enter_folder(task: Task) -> None:
    os.chdir(task.folder)
    os.environ.pop("DATA_DIR", None)
    log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    torch.set_num_threads(1)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    moment = given["moment"] and Moment(**given["moment"])
    run_task(Task(**given | {"moment": moment}))
