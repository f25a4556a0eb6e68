"""What the make targets call: one experiment, a table, the list of both."""

import os
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiment_kit.errors import UserError
from experiment_kit.launch import compose, pool
from experiment_kit.launch.listing import whereabouts
from experiment_kit.runs import Run
from experiment_kit.tables import Cell, TableSpec, load, load_spec, measure, publish, read_csv
from experiment_kit.tables import terminal as show


def run(
    app: str,
    data: str,
    backbone: str,
    method: str = "plain",
    recipe: str = "",
    profile: str = "",
    seed: int = 0,
    args: str = "",
    subcommand: str = "fit",
) -> None:
    """Run one experiment by the names of its overlays; ARGS go to the app as they are."""
    chosen = {"data": data, "backbone": backbone, "method": method, "recipe": recipe}
    arguments = compose.arguments(
        app, [f"--seed_everything={seed}", *shlex.split(args)], profile=profile, **chosen
    )
    os.execv(sys.executable, [sys.executable, *compose.command(app, subcommand, arguments)])


def table(
    table: str,
    profile: str = "paper",
    protocol: str = "validation",
    seeds: Sequence[int] = (0, 1, 2),
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    jobs: int = 0,
    out: str = "docs/results",
    folder: str = "runs",
    train: bool = True,
) -> None:
    """Make the cells of a paper's table that are missing, then print and publish it.

    Cells are processes of their own; what is finished is left alone and what was interrupted
    resumes. Cells whose data is not here are left out. `train: false` renders what is there.
    """
    from experiment_kit.launch.plan import plan  # lightning and the app: seconds

    console = Console()
    spec, paper = _spec(table), load(table)
    cells = _with_data(spec.cells(profile, protocol, seeds, rows, columns), console)
    runs = plan(cells, folder)
    failed = _train(runs, folder, jobs, console) if train else 0
    found = [m for cell, run in runs.items() if (m := measure(spec, cell, run.folder))]
    paths = publish(spec, paper, found, out)
    show(read_csv(paths["csv"]), paper, spec, profile, protocol, console, columns)
    console.print(f"[bold]{paths['html']}[/] has the figures; logs: tensorboard --logdir {folder}")
    if failed:
        raise UserError(f"{failed} of {len(runs)} runs failed; the others are in the table")


def _spec(name: str) -> TableSpec:
    files = {path.stem: path for path in compose.APPS.glob("*/tables/*.yaml")}
    if name not in files:
        raise UserError(f"no table {name!r}; there are: {', '.join(sorted(files)) or 'none'}")
    return load_spec(files[name])


def _with_data(cells: list[Cell], console: Console) -> list[Cell]:
    names = {(cell.app, cell.data) for cell in cells}
    absent = {name: place for name in names if isinstance(place := whereabouts(*name), str)}
    for (_, data), reason in sorted(absent.items()):
        console.print(f"left out: {data}: {escape(reason)}")
    return [cell for cell in cells if (cell.app, cell.data) not in absent]


def _train(runs: dict[Cell, Run], folder: str, jobs: int, console: Console) -> int:
    todo = [(cell, run) for cell, run in runs.items() if run.result() is None]
    console.print(f"{len(runs) - len(todo)} of {len(runs)} runs are finished")
    for _, run in todo:
        if (step := run.reached()) is not None:
            console.print(f"resuming {run.folder} from step {step}")
    quiet = ("--trainer.enable_progress_bar=false", f"--run.folder={folder}")
    work = []
    for cell, run in todo:
        name = f"{cell.data} {cell.method} seed {cell.seed}"
        command = compose.command(cell.app, "fit", [*compose.of_cell(cell), *quiet])
        work.append(pool.Job(name, command, run.folder / "log.txt"))
    return _watch(work, jobs or pool.slots(), console)


def _watch(work: list[pool.Job], at_once: int, console: Console) -> int:
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
