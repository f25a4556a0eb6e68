"""A run that is interrupted, and resumed to its end, is as one that nothing interrupted.

A few interruptions are always tested; `make robustness` makes hundreds of them.
"""

import errno
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from experiment_kit.launch.jobs import read_last_line

from tests.apps.cases import CASES
from tests.apps.contract import find_run
from tests.processes import HUNG
from tests.robustness.child import ROOT, Moment, Task
from tests.robustness.compare_runs import compare_runs

pytestmark = pytest.mark.timeout(300)  # children, on machines of two slow cores
EARLY = "lightning.pytorch.callbacks.EarlyStopping"
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
VARIANT_PLAN = [  # signal, kind of moment, at most so many of them
    ("TERM", "training batch", 4), ("KILL", "training batch", 1), ("KILL", "rename", 1),
]  # fmt: skip
PLANS = {
    "": [
        ("KILL", "rename", 6), ("KILL", "fsync", 4), ("KILL", "unlink", 4), ("KILL", "hook", 6),
        ("KILL", "training batch", 3), ("KILL", "validation batch", 2), ("KILL", "test batch", 2),
        ("TERM", "training batch", 99), ("TERM", "validation batch", 2), ("TERM", "test batch", 1),
        ("TERM", "hook", 5), ("TERM", "rename", 1),
        *((signal, event, most) for signal in ("INT", "HUP", "USR1")
          for event, most in (("training batch", 2), ("validation batch", 1), ("hook", 1))),
        ("ENOSPC", "open", 2), ("ENOSPC", "fsync", 2), ("EDQUOT", "rename", 2),
    ],
    "num_workers=1": [*VARIANT_PLAN, ("WORKER", "training batch", 1)],
    "ddp": [("TERM", "training batch", 2), ("KILL", "training batch", 1)],
}  # fmt: skip


@dataclass(frozen=True)
class Whole:
    """A run that was not interrupted: its task, its folder, and the counts of its events."""

    task: Task
    folder: Path
    counts: dict[str, int]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def make_task(scratch: Path, name: str, app: str, variant: str) -> Task:
    """Make a folder for runs, with the configs of the apps; the runs of an app share its caches."""
    folder, cache = scratch / name, scratch / "caches" / app
    for made in (folder, cache):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "apps").symlink_to(ROOT / "apps")
    (folder / "runs").symlink_to(cache)
    (case,) = (case for case in CASES if case.name == app)
    settings = [text.replace("<monitor>", case.app.monitor) for text in VARIANTS[variant]]
    options = ("--run.folder=out", "--spectral.every_n_steps=2", *settings)
    return Task(app, tuple(case.tiny_arguments(*options, method="gfsa")), str(folder))


@cache
def run_whole(scratch: Path, app: str, variant: str) -> Whole:
    """Run without an interruption, twice, since the first run fills the caches."""
    first, whole = (make_task(scratch, f"{n}-{app}-{variant}", app, variant) for n in "ab")
    for task in (first, whole):
        assert task.run() == 0, read_last_line(task.find_file("log.txt"))
    folder = find_run(whole.find_file("out")).folder
    assert compare_runs(find_run(first.find_file("out")).folder, folder) == []
    return Whole(whole, folder, json.loads(whole.find_file("counts.json").read_text()))


def interrupt_run(whole: Whole, variant: str, *moments: Moment) -> Iterator[str]:
    """Start once for each moment, resume to the end, compare; yield what is lost or different.

    The folder of a run that is different stays. A start needs a sentence in place of a traceback,
    and status 2 for a failing system call; a rank whose partner was killed may have a traceback.
    """
    first = moments[0]
    name = f"{whole.folder.parts[-5]} {variant} {first.action} {first.event} {first.number}"
    scratch = Path(whole.task.folder).parent
    task = make_task(scratch, f"{name} {first.rank}", whole.task.app, variant)
    log, found = task.find_file("log.txt"), []
    for moment in moments:
        status, reached = replace(task, moment=moment).run(), task.find_file("reached")
        if status == HUNG or not reached.exists():
            found += [f"status {status} before the moment"] * (moment is first)
            break
        reached.unlink()
        if hasattr(errno, moment.action) and status not in (0, 2):
            found.append(f"status {status}, not 2: {read_last_line(log)}")
        elif moment.action != "KILL" and "Traceback" in log.read_text(errors="replace"):
            found.append("a traceback")
    status, out = task.run(), task.find_file("out")
    if status != 0 or not [*out.rglob("result.json")]:
        found.append(f"lost: status {status}: {read_last_line(log)}")
    else:
        found += compare_runs(whole.folder, find_run(out).folder)
    yield from (f"{task.folder}: {text}" for text in found)
    if not found:
        shutil.rmtree(task.folder)


def spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers 1 to `count`, evenly spaced, with both ends.

    >>> spread(3, 5), spread(10, 4), spread(10, 1)
    ([1, 2, 3], [1, 4, 7, 10], [5])
    """
    if most == 1 < count:
        return [(count + 1) // 2]
    number = min(count, most)
    return [1 + round(i * (count - 1) / max(1, number - 1)) for i in range(number)]


def list_cases() -> Iterator[object]:
    """List every variant of every app, with its signals and kinds of moments."""
    for variant in VARIANTS:
        apps = ("sequence",) if variant == "ddp" else [case.name for case in CASES]
        for app in apps:
            group = pytest.mark.xdist_group(f"{app} {variant}")  # one whole run for all of them
            for case in PLANS.get(variant, VARIANT_PLAN):
                yield pytest.param(app, variant, *case, marks=group)


@pytest.mark.robustness
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("app", "variant", "signal", "event", "most"), list_cases())
def test_every_kind_of_interruption_is_survived(scratch, app, variant, signal, event, most) -> None:
    """After half of the moments the resumed run is interrupted too, at another one of the kind."""
    whole, generator = run_whole(scratch, app, variant), random.Random(f"{app} {variant}")
    count, found = whole.counts.get(event, 0), []
    for index, number in enumerate(spread(count, most)):
        again = [generator.randint(1, max(1, count // 2))] * (index % 2)
        for rank in (0, 1) if variant == "ddp" else (0,):
            moments = (Moment(event, n, signal, rank) for n in (number, *again))
            found += interrupt_run(whole, variant, *moments)
    assert found == []


@pytest.mark.parametrize(("signal", "event", "numbers"), [
    ("KILL", "rename", (6,)),
    ("INT", "validation batch", (2,)),
    ("ENOSPC", "fsync", (4,)),
])  # fmt: skip
def test_an_interrupted_run_ends_as_the_whole_one(scratch, signal, event, numbers) -> None:
    whole = run_whole(scratch, "sequence", "")
    assert [*interrupt_run(whole, "", *(Moment(event, n, signal) for n in numbers))] == []
