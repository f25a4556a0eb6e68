"""Children forked from one process that has imported the apps, each with a folder and a limit.

A process of its own costs five seconds of imports, a forked one some milliseconds.
"""

import gc
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

REACHED = 100  # exit status of a child that did what it was started for
CPU_SECONDS = 10
MEMORY_GIB = 4  # beyond what the parent has mapped: a huge size must be refused before that


class Reached(BaseException):
    """The end of a child that got as far as it should; no `except Exception` catches it."""


@dataclass(frozen=True)
class Answer:
    """Exit status of a child (negative: the signal that ended it), its text, time and new files."""

    status: int
    out: str
    error: str
    seconds: float
    written: tuple[str, ...]

    @property
    def hung(self) -> bool:
        return self.status in (-signal.SIGKILL, -signal.SIGXCPU)


@dataclass
class Child:
    number: int
    pid: int
    folder: Path
    began: float
    before: frozenset[str]


def run_children(
    actions: Iterable[Callable[[], None]],
    make_folder: Callable[[Path], None],
    scratch: Path,
    jobs: int = 2,
    wall_seconds: float = 60,
) -> Iterator[Answer]:
    """Run every action in a child and a fresh folder of its own; yield the answers in order.

    A child that uses CPU_SECONDS, or takes `wall_seconds`, is killed with all that it started.
    """
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # else the collector of each child would copy the parent's memory
    waiting = enumerate(actions)
    running: list[Child] = []
    answers: dict[int, Answer] = {}
    following, exhausted = 0, False
    while True:
        while len(running) < jobs and not exhausted:
            number, action = next(waiting, (-1, None))
            if action is None:
                exhausted = True
            else:
                running.append(start_child(number, action, make_folder, scratch))
        for child in list(running):
            if (answer := collect_answer(child, wall_seconds)) is not None:
                running.remove(child)
                answers[child.number] = answer
        while following in answers:
            yield answers.pop(following)
            following += 1
        if exhausted and not running:
            return
        time.sleep(0.005)


def start_child(
    number: int, action: Callable[[], None], make_folder: Callable[[Path], None], scratch: Path
) -> Child:
    folder = scratch / str(number)
    (folder / "work").mkdir(parents=True)
    make_folder(folder / "work")
    before = list_files(folder / "work")
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            enter_child(folder)
            status = run_action(action)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(status)
    return Child(number, pid, folder, began, before)


def enter_child(folder: Path) -> None:
    """Leave the parent's session, terminal and folder, and limit CPU time and memory."""
    os.setsid()
    for number, name in ((0, os.devnull), (1, folder / "out"), (2, folder / "error")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags, 0o644), number)
    os.chdir(folder / "work")
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = mapped + MEMORY_GIB * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_action(action: Callable[[], None]) -> int:
    """Return the exit status that Python would end with."""
    try:
        action()
    except Reached:
        return REACHED
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def collect_answer(child: Child, wall_seconds: float) -> Answer | None:
    """Return the answer of a child that has ended, or that has to be killed."""
    late = time.monotonic() - child.began > wall_seconds
    if late:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    pid, status, _ = os.wait4(child.pid, 0 if late else os.WNOHANG)
    if pid == 0:
        return None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what the child left running
    seconds = time.monotonic() - child.began
    place = f"{child.folder / 'work'}/"  # another one in each run of the program
    out, error = (read_text(child.folder / name).replace(place, "") for name in ("out", "error"))
    written = tuple(sorted(list_files(child.folder / "work") - child.before))
    shutil.rmtree(child.folder, ignore_errors=True)
    return Answer(os.waitstatus_to_exitcode(status), out, error, seconds, written)


def list_files(folder: Path) -> frozenset[str]:
    """List the files below a folder; links are not followed."""
    found = []
    for root, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(root, name), folder) for name in names]
    return frozenset(found)


def read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
