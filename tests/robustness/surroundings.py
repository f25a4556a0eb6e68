"""Runs in surroundings that fail: full disks, moved folders, clocks, limits, a second process."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from tests.robustness.campaigns import Whole, check_end, finish_run, make_task, make_workspace
from tests.robustness.child import Moment, Task, run_task
from tests.robustness.processes import run_forked
from tests.robustness.tables import Outcome, Row

APP = "sequence"
HALFWAY = Moment("training batch", 5, "TERM")


@dataclass(frozen=True)
class Surrounding:
    """A kind of failure and its size."""

    kind: str
    size: int = 0

    @property
    def row(self) -> Row:
        return APP, "none", KINDS[self.kind][1].format(self.size)


def list_surroundings(quick: bool) -> list[Surrounding]:
    if quick:
        return [Surrounding("limited file", 20), Surrounding("moved folder")]
    disks = [Surrounding("full disk", size) for size in (4, 40, 150, 300)] * can_mount()
    return [
        *disks,
        *[Surrounding("read-only disk")] * can_mount(),
        *(Surrounding("limited file", size) for size in (1, 8, 20, 40)),
        *(Surrounding(kind) for kind in ("moved folder", "clock", "two processes")),
    ]


def run_surrounding(scratch: Path, name: str, surrounding: Surrounding, whole: Whole) -> Outcome:
    """Start in the surrounding, then finish without it, and compare."""
    began, outcome = time.perf_counter(), Outcome()
    folder = make_workspace(scratch, name, APP)
    start = KINDS[surrounding.kind][0]
    task = start(make_task(APP, "", folder), surrounding.size, outcome)
    outcome.interruptions = 1
    finish_run(task, whole, outcome)
    outcome.seconds = time.perf_counter() - began
    if "disk" in surrounding.kind:
        subprocess.run(["umount", folder / "out"], check=True)
    if not outcome.failed:
        shutil.rmtree(task.folder)
    return outcome


def fill_disk(task: Task, size: int, outcome: Outcome) -> Task:
    """Run on a disk of so many KiB, then enlarge it."""
    out = Path(task.folder) / "out"
    out.mkdir()
    mount(out, f"size={size}k")
    check_end(task, "ENOSPC", run_forked(task), outcome)
    mount(out, "remount,size=64m")
    return task


def lock_disk(task: Task, _: int, outcome: Outcome) -> Task:
    """Interrupt, resume on a read-only disk, then make it writable."""
    out = Path(task.folder) / "out"
    out.mkdir()
    mount(out, "size=64m")
    run_forked(replace(task, moment=HALFWAY))
    mount(out, "remount,ro")
    check_end(task, "ENOSPC", run_forked(task), outcome)
    mount(out, "remount,rw")
    return task


def limit_files(task: Task, size: int, outcome: Outcome) -> Task:
    """Limit files to so many KiB."""
    limited = replace(task, limits=(("RLIMIT_FSIZE", size * 1024),))
    check_end(task, "ENOSPC", run_forked(limited), outcome)
    return task


def move_folder(task: Task, _: int, outcome: Outcome) -> Task:
    """Interrupt, then move the folder."""
    run_forked(replace(task, moment=HALFWAY))
    moved = Path(f"{task.folder}-moved")
    Path(task.folder).rename(moved)
    return replace(task, folder=str(moved))


def set_clock_back(task: Task, _: int, outcome: Outcome) -> Task:
    """Interrupt, then set the clock back by 20 days."""
    run_forked(replace(task, moment=HALFWAY))
    return replace(task, clock=-20 * 86400.0)


def start_twice(task: Task, _: int, outcome: Outcome) -> Task:
    """Start two processes at once."""
    other = get_context("fork").Process(target=run_task, args=(task,))
    other.start()
    statuses = [run_forked(task)]
    other.join()
    statuses.append(other.exitcode or 0)
    if any(statuses):
        outcome.lost = f"two processes at once end with {statuses}"
    return task


KINDS: dict[str, tuple[Callable[[Task, int, Outcome], Task], str]] = {
    "full disk": (fill_disk, "disk of {} KiB"),
    "read-only disk": (lock_disk, "read-only disk"),
    "limited file": (limit_files, "files of at most {} KiB"),
    "moved folder": (move_folder, "moved folder"),
    "clock": (set_clock_back, "clock 20 days back"),
    "two processes": (start_twice, "two processes at once"),
}


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def can_mount() -> bool:
    """Return True if this process may mount a small disk."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]
        if subprocess.run(["mount", *options], capture_output=True).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True
