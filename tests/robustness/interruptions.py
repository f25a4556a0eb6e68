"""All interruptions: the plan of campaigns, the processes that run them, the table."""

import gc
import os
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.robustness import launcher
from tests.robustness.campaigns import (
    VARIANTS,
    Campaign,
    Outcome,
    Row,
    Whole,
    find_case,
    make_workspace,
    run_campaign,
    run_whole,
    spread,
)

APPS = ("nlp", "graph", "vision", "speech", "sequence")  # the slowest ones first
APPS_OF = {  # a variant: by default all
    "ddp": ("sequence",),
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
HEAD = ("run", "signal", "moment", "campaigns", "interruptions", "lost", "different", "seconds")
Attack = Campaign | launcher.LauncherCampaign


def list_variants(quick: bool, apps: Sequence[str]) -> list[tuple[str, str]]:
    """Name the app and the variant of every run."""
    variants = [""] if quick else VARIANTS
    return [(app, v) for v in variants for app in apps if app in APPS_OF.get(v, APPS)]


def plan_campaigns(app: str, variant: str, whole: Whole, quick: bool) -> Iterator[Campaign]:
    """Yield the campaigns of a run: of every kind of moment, some evenly spaced ones.

    After half of the moments the resumed run is interrupted too, at another one of the kind.
    """
    generator = random.Random(f"{app} {variant}")
    for signal, event, most in PLANS.get(variant, VARIANT_PLAN):
        count = whole.counts.get(event, 0)
        for index, number in enumerate(spread(count, 1 if quick else most)):
            again = (generator.randint(1, max(1, count // 2)),) * (index % 2)
            for rank in (0, 1) if variant == "ddp" else (0,):
                yield Campaign(app, variant, signal, event, (number, *again), rank=rank)


def import_apps(scratch: Path) -> None:
    """Import what a run imports, and read the data that an app keeps in memory."""
    with chdir(make_workspace(scratch, "imports", "imports")):
        for app in APPS:
            case = find_case(app)
            built = case.build(case.tiny_arguments("--run.folder=out", method="gfsa"))
            built.data.prepare_data()
            built.data.setup("fit")
    gc.collect()
    gc.freeze()  # else the collector of each child would copy this process's memory


def run_interruptions(quick: bool, workers: int, apps: Sequence[str] = APPS) -> int:
    """Run all campaigns, print the table; return how many were lost or different."""
    scratch, console = Path(tempfile.mkdtemp(prefix="robustness-")), Console()
    if not console.is_terminal:
        console = Console(width=120)  # the table is as wide
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    import_apps(scratch)
    # its processes fork the children: they start here, where there is no thread yet
    pool = ProcessPoolExecutor(workers, get_context("fork"))
    pool.submit(os.getpid)
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        try:
            outcomes = list(run_all(pool, progress, scratch, quick, apps))
        finally:
            pool.shutdown(cancel_futures=True)
    console.print(make_table(outcomes))
    failures = sum(outcome.failed for _, outcome in outcomes)
    if failures:
        console.print(f"{failures} campaigns failed: their folders are in {scratch}")
    else:
        shutil.rmtree(scratch)
    return failures


def run_all(
    pool: ProcessPoolExecutor, progress: Progress, scratch: Path, quick: bool, apps: Sequence[str]
) -> Iterator[tuple[Row, Outcome]]:
    """Yield every outcome with the row of the table that it counts in."""
    variants = list_variants(quick, apps)
    wholes = {pool.submit(run_whole, scratch, *variant): variant for variant in variants}
    running: dict[Future[Outcome], Attack] = {}
    bar = progress.add_task("campaigns")

    def submit(function: Callable[..., Outcome], attack: Attack, whole: Any) -> None:
        running[pool.submit(function, scratch, str(len(running)), attack, whole)] = attack
        progress.update(bar, total=len(running))

    for done in as_completed(wholes):
        app, variant = wholes[done]
        for campaign in plan_campaigns(app, variant, done.result(), quick):
            submit(run_campaign, campaign, done.result())
    if launcher.APP in apps:
        table = pool.submit(launcher.run_whole_table, scratch).result()
        for attack in launcher.list_campaigns(quick):
            submit(launcher.run_launcher_campaign, attack, table)
    for future in as_completed(running):
        outcome = future.result()
        progress.advance(bar)
        if outcome.failed:
            lines = [outcome.lost, *outcome.differences]
            text = f"{running[future]}: {'; '.join(filter(None, lines))[:500]}"
            progress.console.print(text, markup=False)
        yield running[future].row, outcome


def make_table(outcomes: Iterable[tuple[Row, Outcome]]) -> Table:
    """Return a table with a line for each row, sorted, and the sum."""
    rows: dict[Row, list[Outcome]] = defaultdict(list)
    for row, outcome in outcomes:
        rows[row].append(outcome)
    table = Table(*HEAD, title="interruptions")
    for row, group in sorted(rows.items()):
        table.add_row(*row, *count_outcomes(group))
    every = [outcome for group in rows.values() for outcome in group]
    table.add_row("sum", "", "", *count_outcomes(every))
    return table


def count_outcomes(group: Sequence[Outcome]) -> tuple[str, ...]:
    interruptions = sum(outcome.interruptions for outcome in group)
    lost = sum(bool(outcome.lost) for outcome in group)
    different = sum(bool(outcome.differences) for outcome in group)
    seconds = sum(outcome.seconds for outcome in group)
    return (*map(str, (len(group), interruptions, lost, different)), f"{seconds:.0f}")
