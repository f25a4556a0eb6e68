"""Make what a table or a comparison still lacks: processes, watched."""

from collections.abc import Collection, Mapping

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiment_kit.launch import compose, pool
from experiment_kit.runs import Run
from experiment_kit.tables import Cell

MEASURES = {"efficiency": compose.efficiency, "eigenvalues": compose.eigenvalues}  # by source


def make(runs: Mapping[Cell, Run], folder: str, jobs: int, console: Console) -> int:
    """Train and measure what is missing; return how many processes failed.

    Cells that show the same run share one process. What is measured of a model comes after
    training and one at a time, since costs would slow each other down.
    """
    training = {r.folder: (c, r) for c, r in runs.items() if c.trained}
    failed = _watch(_trainings(training.values(), folder, console), jobs or pool.slots(), console)
    for source in MEASURES:
        wanted = {r.folder: (c, r) for c, r in runs.items() if c.source == source}
        failed += _watch(_measurements(source, wanted.values(), folder), 1, console)
    return failed


def _trainings(
    wanted: Collection[tuple[Cell, Run]], folder: str, console: Console
) -> list[pool.Job]:
    todo = [(cell, run) for cell, run in wanted if run.result() is None]
    console.print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are finished")
    for _, run in todo:
        if (step := run.reached()) is not None:
            console.print(f"resuming {run.folder} from step {step}")
    quiet = "--trainer.enable_progress_bar=false"
    return [
        pool.Job(
            f"{cell.data} {cell.method} seed {cell.seed}",
            compose.command(cell.app, "fit", [*compose.of_cell(cell, folder), quiet]),
            run.folder / "log.txt",
        )
        for cell, run in todo
    ]


def _measurements(source: str, wanted: Collection[tuple[Cell, Run]], folder: str) -> list[pool.Job]:
    return [
        pool.Job(
            f"{source} of {cell.backbone} {cell.method}",
            MEASURES[source](cell.app, compose.of_cell(cell, folder)),
            run.folder / f"{source}.txt",
        )
        for cell, run in wanted
        if not (run.folder / f"{source}.json").is_file()
        if not cell.trained or run.result() is not None  # its training failed
    ]


def _watch(work: list[pool.Job], at_once: int, console: Console) -> int:
    if not work:
        return 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    failed = 0
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("runs", total=len(work))

        def ended(job: pool.Job, status: int) -> None:
            nonlocal failed
            failed += status != 0
            last = job.log.read_text(errors="replace").strip().rpartition("\n")[2]
            mark = "[green]done[/]" if status == 0 else f"[red]exit status {status}[/]"
            progress.console.print(f"{mark} {job.name}: {escape(last)}")
            progress.advance(task)

        pool.run(work, at_once, ended)
    return failed
