"""The command that makes a table: train what is missing, publish, print."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from filelock import FileLock
from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs, print_plan, run_missing
from experiment_kit.launch.jobs import FAILURE
from experiment_kit.launch.options import check_jobs, check_list, check_seeds, make_folders
from experiment_kit.launch.plan import Experiment, find_data, plan_runs
from experiment_kit.launch.ray import choose_launcher
from experiment_kit.papers import results as table_results
from experiment_kit.papers.provenance import publish_runs, read_runs
from experiment_kit.papers.render import print_table, render_markdown
from experiment_kit.papers.results import Measurement, TableResults, read_measurement, read_results
from experiment_kit.papers.spec import Cell, TableSpec, find_spec
from experiment_kit.papers.values import PaperTable, load_table
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping, try_read


def make_table(
    table: str,
    profile: str = "paper",
    protocol: str = "validation",
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    jobs: int = 0,
    out: str = "docs/results",
    folder: str = "runs",
    train: bool = True,
    dry_run: bool | Literal["commands"] = False,
    samples: int | str | None = None,
    epoch: Literal["best", "last"] | None = None,
    launcher: Literal["local", "ray"] = "local",
    address: str = "",
) -> None:
    """Make the cells of a paper's table that are missing, then print and publish it.

    Each run is a process; finished runs are kept, interrupted ones resume. Cells whose data is not
    here are left out; the cost of a model needs no data. The page is `<out>/<table>.md`.

    Args:
        table: a printed table, such as agf-table-1
        profile: the length of the runs: paper for the full one, or smoke, small or another name in
            configs/profiles.yaml of the app
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name of protocols.yaml
        seeds: such as [0,1,2], each from 0 to 4294967295; the default is those of the protocol,
            else [0,1,2]
        rows: such as [gfsa,agf], the keys of rows of the table; all by default
        columns: such as [cola], the keys of columns of the table; all by default
        jobs: runs at a time; 0 is one for each GPU, or for each core without a GPU
        out: the folder of the published results: Markdown, CSV and runs.jsonl
        folder: the folder of the runs
        train: train what is missing; false renders what is there
        dry_run: list the runs and what they start from, and train nothing; commands prints a
            shell command for each
        samples: the number of samples on which eigenvalues are measured, or all; the default is
            that of the table
        epoch: the epoch at which eigenvalues are measured; the default is that of the table
        launcher: where runs are started: local is this machine, ray the machines of a Ray cluster
        address: that of a Ray cluster, such as head:6379; the default is the one of this machine
    """
    check_jobs(jobs)
    if seeds is not None:
        check_seeds(seeds)
    check_list("rows", rows)
    check_list("columns", columns)
    console = Console(stderr=dry_run == "commands")
    spec = find_spec(table).set_eigenvalues(samples=samples, epoch=epoch)
    paper = load_table(table)
    profile = profile or "paper"
    rows = _default_rows(spec, train, console) if rows is None else rows
    if not dry_run:
        make_folders(out=out, folder=folder)
    cells = spec.list_cells(profile, protocol, seeds, rows, columns)
    cells = select_cells_with_data(cells, console)
    read_runs(Path(out))  # a mistake in what is published is told before training
    if train:
        check_weights_of_plan(spec, paper, cells, Path(out) / f"{table}.csv")
    runs = plan_runs((cell.experiment for cell in cells), folder)
    possible = select_startable_runs(runs, console)
    if dry_run:
        print_plan(possible, console, folder, dry_run == "commands")
        return
    launch = choose_launcher(launcher, address) if train else None
    failures = run_missing(possible, folder, jobs, console, launch) if train else 0
    folders = {cell: runs[cell.experiment].folder for cell in cells}
    found = [m for cell, at in folders.items() if (m := try_read(read_measurement, cell, at))]
    results = publish_table(spec, paper, found, Path(out), Path(folder))
    print_table(results, profile, protocol, console, columns)
    page, logs = Path(out) / f"{table}.md", f"tensorboard --logdir {shlex.quote(folder)}"
    console.print(f"[bold]{escape(str(page))}[/] has statistics and runs; curves: {escape(logs)}")
    print_failures(folders, console)
    if failures:
        raise UserError(f"{count_runs(failures)} did not finish; the others are in the table")


def _default_rows(spec: TableSpec, train: bool, console: Console) -> list[str]:
    random = [key for key, row in spec.all_rows.items() if train and row.random]
    if random:
        console.print(f"left out: rows of random weights, by --rows alone: {', '.join(random)}")
    return [key for key in spec.all_rows if key not in random]


def print_failures(folders: Mapping[Cell, Path], console: Console) -> None:
    """Print the cells whose run failed for good, with the reason and the log."""
    for cell, folder in folders.items():
        failure = try_read(read_mapping, folder / FAILURE, "delete it")
        if failure is not None:
            place = f"{cell.row}, {cell.column}, seed {cell.experiment.seed}"
            text = f"{place}: {failure.get('reason')}, see {folder / 'log.txt'}"
            console.print(f"[red]FAILED[/] {escape(text)}", soft_wrap=True, highlight=False)


def select_cells_with_data(cells: Sequence[Cell], console: Console) -> list[Cell]:
    """Return the cells whose data is here or not needed; print the others' data sets."""
    needed = {(e.app, e.data) for cell in cells if (e := cell.experiment).is_trained}
    absent = {name: place for name in needed if isinstance(place := find_data(*name), str)}
    for (_, data), reason in sorted(absent.items()):
        console.print(f"left out: {escape(data)}: {escape(reason)}")
    found = {cell: (cell.experiment.app, cell.experiment.data) for cell in cells}
    return [cell for cell in cells if not cell.experiment.is_trained or found[cell] not in absent]


def select_startable_runs(
    runs: Mapping[Experiment, Run], console: Console
) -> dict[Experiment, Run]:
    """Return the runs that can be made; print the missing data that the others start from."""
    starts = {e.start for e in runs if e.start and not runs[e.start].has_result}
    places = {(e.app, e.data): find_data(e.app, e.data) for e in starts}
    absent = {name: reason for name, reason in places.items() if isinstance(reason, str)}
    lost = {e for e in starts if (e.app, e.data) in absent}
    for (app, data), reason in sorted(absent.items()):
        count = sum((e.start.app, e.start.data) == (app, data) for e in runs if e.start in lost)
        text = f"{data}, and {count} runs that start from it: {reason}"
        console.print(f"left out: {escape(text)}")
    return {e: run for e, run in runs.items() if e not in lost and e.start not in lost}


def check_weights_of_plan(
    spec: TableSpec, paper: PaperTable, cells: Sequence[Cell], path: Path
) -> None:
    """Raise UserError before training for a mix of weights that publishing would refuse."""
    old = read_results(path, paper)
    if not any(row.random for row in spec.all_rows.values()):
        return
    planned = [
        Measurement(
            **{name: getattr(cell, name) for name in ("table", "row", "column", "protocol")},
            profile=cell.experiment.profile,
            seed=cell.experiment.seed,
            value=0.0,
            run="",
            weights_source=table_results.RANDOM if spec.all_rows[cell.row].random else "pretrained",
        )
        for cell in cells
    ]
    new = table_results.collect_results(planned, spec, paper)
    table_results.check_no_mixed_weights(table_results.merge_results(old, new, spec, paper))


def publish_table(
    spec: TableSpec, paper: PaperTable, measurements: Sequence[Measurement], out: Path, folder: Path
) -> TableResults:
    """Add new runs of `folder` to those that `out` has, then write `<table>.csv` and `.md`.

    Results of other machines in the CSV are kept.
    """
    path = out / f"{spec.table}.csv"
    out.mkdir(parents=True, exist_ok=True)
    new = table_results.collect_results(measurements, spec, paper)
    measured = {m.run for m in measurements}
    publish_runs([r.folder for r in Run.find_all(folder) if r.hash in measured], out)
    with FileLock(f"{path}.lock"):  # two tables at once must not lose each other's lines
        runs = table_results.merge_results(read_results(path, paper), new, spec, paper)
        results = TableResults(spec, paper, runs)
        table_results.write_results(path, results)
    write_atomically(path.with_suffix(".md"), render_markdown(results, out))
    return results
