"""Processes of a run: each runs an app's command line, and ends or fails at an exact moment.

`python -m tests.robustness.child '<task as JSON>'` is a process of its own, and so are the other
ranks that Lightning starts by the same command line.
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
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from experiment_kit import app_cli, cli
from lightning.pytorch import Callback
from torch.utils.tensorboard import SummaryWriter

from tests.processes import start_python, wait_for_end

ROOT = Path(__file__).parents[2]
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
    """A command line of an app, in a folder that has its log, and counts of events.

    The file `reached` says that the moment came.
    """

    app: str
    arguments: tuple[str, ...]
    folder: str
    moment: Moment | None = None

    def find_file(self, name: str) -> Path:
        return Path(self.folder) / name

    def run(self) -> int:
        """Run in a process of its own; return its exit status, of a signal < 0."""
        arguments = ["-m", "tests.robustness.child", json.dumps(asdict(self))]
        log, paths = self.find_file("log.txt"), os.pathsep.join(sys.path)
        with start_python(arguments, log, self.folder, PYTHONPATH=paths) as process:
            return wait_for_end(process)


class EventCounter(Callback):
    """Count file operations and hooks of the main thread, and act before one of them."""

    def __init__(self, task: Task) -> None:
        self.moment, self.mark, self.counts = task.moment, task.find_file("reached"), Counter[str]()
        self.rank = int(os.environ.get("LOCAL_RANK", 0))
        for hook, event in HOOKS.items():
            setattr(self, hook, partial(self.count_event, event))

    def count_event(self, event: str, *_: Any, **__: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.counts[event] += 1
        here = event, self.counts[event], self.rank
        if self.moment and (self.moment.event, self.moment.number, self.moment.rank) == here:
            os.close(os.open(self.mark, os.O_CREAT))
            act(self.moment.action)

    def count_calls(self, event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if event != "open" or {*args[1:2]} & {"w", "wb", "x", "xb", "a", "ab"}:
                self.count_event(event)
            return function(*args, **options)

        return counted


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
    """Run the command line in this process."""
    counter = EventCounter(task)
    for name, event in FILE_EVENTS.items():
        setattr(os, name, counter.count_calls(event, getattr(os, name)))
    io.open = counter.count_calls("open", io.open)  # what pathlib calls
    make = app_cli.default_callbacks
    app_cli.default_callbacks = lambda *args, **options: [counter, *make(*args, **options)]
    # drawing takes as long as the rest of a small run, and writes no file of its own
    SummaryWriter.add_figure = lambda *_, **__: None
    try:
        cli.run_app(import_module(f"attention_{task.app}").APP, ["fit", *task.arguments])
    finally:
        if counter.rank == 0:
            task.find_file("counts.json").write_text(json.dumps(counter.counts))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    moment = given["moment"] and Moment(**given["moment"])
    run_task(Task(**given | {"moment": moment}))
