"""Campaigns: start a run, interrupt it, resume it to its end, compare it with a whole one."""

import errno
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.apps.cases import CASES
from tests.apps.contract import AppCase, find_run
from tests.robustness.child import Moment, Task
from tests.robustness.compare_runs import compare_runs
from tests.robustness.processes import HUNG, ROOT, run_forked, run_process

EARLY = "experiment_kit.training.lightning_patches.ResumableEarlyStopping"
STEPS = "--trainer.max_epochs=2", "--trainer.limit_train_batches=3"
FIVE = "--trainer.max_epochs=2", "--trainer.limit_train_batches=5"
VARIANTS: dict[str, tuple[str, ...]] = {
    "": STEPS,
    "val_check_interval=2": (*FIVE, "--trainer.val_check_interval=2"),
    "accumulate_grad_batches=2": (*FIVE, "--trainer.accumulate_grad_batches=2"),
    "early stopping": (
        *("--trainer.max_epochs=5", "--trainer.limit_train_batches=2"),
        f"--trainer.callbacks=[{{class_path: {EARLY}, init_args: {{monitor: <monitor>, mode: max, "
        "patience: 1}}]",
    ),
    "num_workers=1": (*STEPS, "--data.init_args.num_workers=1"),
    "every_n_steps=2": (
        *("--trainer.max_epochs=1", "--trainer.limit_train_batches=7"),
        "--checkpoint.every_n_steps=2",
    ),
    "ddp": (*STEPS, "--trainer.strategy=ddp", "--trainer.devices=2"),
}


Row = tuple[str, str, str]  # the run, the signal, the kind of moment


@dataclass
class Outcome:
    """Interruptions that took place; why a run was lost; what is different."""

    interruptions: int = 0
    lost: str = ""
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.differences)


@dataclass(frozen=True)
class Campaign:
    """A run, and the moments at which its starts are interrupted one after another."""

    app: str
    variant: str
    signal: str
    event: str
    numbers: tuple[int, ...]
    rank: int = 0

    @property
    def row(self) -> Row:
        """What the table shows in one row."""
        return f"{self.app}, {self.variant}".rstrip(", "), self.signal, self.event


@dataclass(frozen=True)
class Whole:
    """A run that was not interrupted: its folder and its events."""

    folder: str
    counts: dict[str, int]


@cache
def find_case(app: str) -> AppCase:
    (case,) = (case for case in CASES if case.name == app)
    return case


def make_workspace(scratch: Path, name: str, app: str) -> Path:
    """Make a folder for runs, with the configs of the apps; the runs of an app share its caches."""
    folder = scratch / name
    folder.mkdir(parents=True)
    (folder / "apps").symlink_to(ROOT / "apps")
    (cache := scratch / "caches" / app).mkdir(parents=True, exist_ok=True)
    (folder / "runs").symlink_to(cache)
    return folder


def make_task(app: str, variant: str, folder: Path, *extra: str) -> Task:
    case = find_case(app)
    settings = [text.replace("<monitor>", case.app.monitor) for text in VARIANTS[variant]]
    options = ("--run.folder=out", "--spectral.every_n_steps=2", *settings, *extra)
    return Task(app, tuple(case.tiny_arguments(*options, method="gfsa")), str(folder))


def run_task_to_end(task: Task) -> int:
    run = run_process if "--trainer.devices=2" in task.arguments else run_forked
    return run(task)


def run_whole(scratch: Path, app: str, variant: str) -> Whole:
    """Run without an interruption, twice, since the first run fills the caches."""
    for name in ("first", "whole"):
        folder = make_workspace(scratch, f"{name}-{app}-{variant}", app)
        task = make_task(app, variant, folder)
        if status := run_task_to_end(task):
            raise RuntimeError(f"{task.log} ends with status {status}")
    first = find_run(folder.with_name(f"first-{app}-{variant}") / "out").folder
    whole = find_run(folder / "out").folder
    if differences := compare_runs(first, whole):
        raise RuntimeError(f"two whole runs of {app} {variant} differ: {differences}")
    return Whole(str(whole), json.loads(task.counts.read_text()))


def run_campaign(scratch: Path, name: str, campaign: Campaign, whole: Whole) -> Outcome:
    """Interrupt, resume and compare; keep the folder of a run that is lost or different."""
    began, outcome = time.perf_counter(), Outcome()
    folder = make_workspace(scratch, name, campaign.app)
    task = make_task(campaign.app, campaign.variant, folder)
    outcome.interruptions = interrupt_at_moments(task, campaign, outcome)
    finish_run(task, whole, outcome)
    outcome.seconds = time.perf_counter() - began
    if not outcome.failed:
        shutil.rmtree(folder)
    return outcome


def interrupt_at_moments(task: Task, campaign: Campaign, outcome: Outcome) -> int:
    """Start once for each moment; return how many of them came."""
    for count, number in enumerate(campaign.numbers):
        moment = Moment(campaign.event, number, campaign.signal, campaign.rank)
        status = run_task_to_end(replace(task, moment=moment))
        if status == HUNG or not task.mark.exists():
            return count
        task.mark.unlink()
        check_end(task, campaign.signal, status, outcome)
    return len(campaign.numbers)


def check_end(task: Task, cause: str, status: int, outcome: Outcome) -> None:
    """Demand a sentence in place of a traceback, and status 2 for a failing system call.

    A rank whose partner was killed may show where it waited.
    """
    if hasattr(errno, cause) and status not in (0, 2):
        outcome.differences.append(f"{cause}: status {status}, not 2: {read_last_line(task.log)}")
    elif cause != "KILL" and "Traceback" in task.log.read_text(errors="replace"):
        outcome.differences.append(f"{cause}: a traceback")


def finish_run(task: Task, whole: Whole, outcome: Outcome) -> None:
    """Resume a run until it ends, and compare it."""
    status = run_task_to_end(task)
    out = Path(task.folder) / "out"
    ends = [path.parent for path in out.rglob("result.json")]
    if status != 0 or not ends:
        outcome.lost = f"status {status}: {read_last_line(task.log)}"
    else:
        outcome.differences += compare_runs(Path(whole.folder), find_run(out).folder)


def read_last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:200] if lines else "no output"


def spread(count: int, most: int) -> Sequence[int]:
    """Return at most so many of the numbers 1 to `count`, evenly spaced, with both ends.

    >>> spread(3, 5), spread(10, 4)
    ([1, 2, 3], [1, 4, 7, 10])
    """
    if count <= most:
        return [*range(1, count + 1)]
    if most == 1:
        return [(count + 1) // 2]
    return sorted({1 + round(i * (count - 1) / (most - 1)) for i in range(most)})
