"""The command that makes a table: train what is missing, publish, print."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from filelock import FileLock
from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs, print_plan, run_missing
from experiment_kit.launch.jobs import FAILURE
from experiment_kit.launch.options import LaunchOptions, check_list, check_seeds, make_folders
from experiment_kit.launch.plan import Experiment, find_absent_data, plan_runs
from experiment_kit.papers.provenance import publish_runs, read_runs
from experiment_kit.papers.render import print_table, render_markdown
from experiment_kit.papers.results import (
    RANDOM,
    Measurement,
    TableResults,
    add_measurements,
    check_no_mixed_weights,
    open_results,
    read_measurement,
    write_results,
)
from experiment_kit.papers.spec import Cell, TableSpec, find_spec
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import read_mapping, try_read


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options on the cells of a table.

    Args:
        profile: the length of the runs: paper for the full one, or smoke, small or another name in
            configs/profiles.yaml of the app
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name of protocols.yaml
        seeds: such as [0,1,2], each from 0 to 4294967295; the default is those of the protocol,
            else [0,1,2]
        rows: such as [gfsa,agf], the keys of rows of the table; all by default
        columns: such as [cola], the keys of columns of the table; all by default
    """

    profile: str = "paper"
    protocol: str = "validation"
    seeds: Sequence[int] | None = None
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        check_list("rows", self.rows)
        check_list("columns", self.columns)

    @property
    def names(self) -> dict[str, Any]:
        """The options that `TableSpec.list_cells` takes."""
        return {field.name: getattr(self, field.name) for field in fields(CellOptions)}


@dataclass(frozen=True, kw_only=True)
class TableOptions(CellOptions, LaunchOptions):
    """The options on the cells of a table, and on how their runs are started."""


def make_table(
    table: str,
    out: str = "docs/results",
    train: bool = True,
    samples: int | str | None = None,
    epoch: Literal["best", "last"] | None = None,
    **options: Any,
) -> None:
    """Make the cells of a paper's table that are missing, then print and publish it.

    Each run is a process; finished runs are kept, interrupted ones resume. Cells whose data is not
    here are left out; the cost of a model needs no data. The page is `<out>/<table>.md`.

    Args:
        table: a printed table, such as agf-table-1
        out: the folder of the published results: Markdown, CSV and runs.jsonl
        train: train what is missing; false renders what is there
        samples: the number of samples on which eigenvalues are measured, or all; the default is
            that of the table
        epoch: the epoch at which eigenvalues are measured; the default is that of the table
        options: those of the cells, and of how runs are started
    """
    chosen = TableOptions(**options)
    console, folder = chosen.console, Path(chosen.folder)
    spec = find_spec(table).set_eigenvalues(samples=samples, epoch=epoch)
    if chosen.rows is None and train and (left := {*spec.all_rows} - {*spec.default_rows}):
        names = ", ".join(sorted(left))
        console.print(f"left out: rows of random weights, by --rows alone: {names}")
        chosen = replace(chosen, rows=spec.default_rows)
    if not chosen.dry_run:
        make_folders(out=out, folder=chosen.folder)
    cells = select_cells_with_data(spec.list_cells(**chosen.names), console)
    read_runs(Path(out))  # a mistake in what is published is told before training
    if train:
        check_weights_of_plan(spec, cells, Path(out))
    runs = plan_runs((cell.experiment for cell in cells), chosen.folder)
    possible = select_startable_runs(runs, console)
    if chosen.dry_run:
        print_plan(possible, chosen)
        return
    failures = run_missing(possible, chosen) if train else 0
    results = publish_table(spec, read_measurements(cells, runs), Path(out), folder)
    print_table(results, chosen.profile, chosen.protocol, console, chosen.columns)
    page, logs = Path(out) / f"{table}.md", f"tensorboard --logdir {shlex.quote(chosen.folder)}"
    console.print(f"[bold]{escape(str(page))}[/] has statistics and runs; curves: {escape(logs)}")
    print_failures(cells, runs, console)
    if failures:
        raise UserError(f"{count_runs(failures)} did not finish; the others are in the table")


def read_measurements(cells: Iterable[Cell], runs: Mapping[Experiment, Run]) -> list[Measurement]:
    """Read the cells that are measured; a damaged result is left out with a warning."""
    folders = ((cell, runs[cell.experiment].folder) for cell in cells)
    found = (try_read(read_measurement, cell, folder) for cell, folder in folders)
    return [measurement for measurement in found if measurement]


def print_failures(cells: Iterable[Cell], runs: Mapping[Experiment, Run], console: Console) -> None:
    """Print the cells whose run failed for good, with the reason and the log."""
    for cell in cells:
        folder = runs[cell.experiment].folder
        if failure := try_read(read_mapping, folder / FAILURE, "delete it"):
            place = f"{cell.row}, {cell.column}, seed {cell.experiment.seed}"
            text = f"{place}: {failure.get('reason')}, see {folder / 'log.txt'}"
            console.print(f"[red]FAILED[/] {escape(text)}", soft_wrap=True, highlight=False)


def select_cells_with_data(cells: Sequence[Cell], console: Console) -> list[Cell]:
    """Return the cells whose data is here or not needed; print the others' data sets."""
    absent = find_absent_data(cell.experiment for cell in cells if cell.experiment.is_trained)
    for (_, data), reason in absent.items():
        console.print(f"left out: {escape(data)}: {escape(reason)}")
    experiments = ((cell, cell.experiment) for cell in cells)
    return [cell for cell, e in experiments if not e.is_trained or (e.app, e.data) not in absent]


def select_startable_runs(
    runs: Mapping[Experiment, Run], console: Console
) -> dict[Experiment, Run]:
    """Return the runs that can be made; print the missing data that the others start from."""
    starts = {e.start for e in runs if e.start and not runs[e.start].has_result}
    absent = find_absent_data(starts)
    lost = {e for e in starts if (e.app, e.data) in absent}
    for (_, data), reason in absent.items():
        text = f"{data}, and the runs that start from it: {reason}"
        console.print(f"left out: {escape(text)}")
    return {e: run for e, run in runs.items() if e not in lost and e.start not in lost}


def check_weights_of_plan(spec: TableSpec, cells: Sequence[Cell], out: Path) -> None:
    """Raise UserError before training for a mix of weights that publishing would refuse."""
    if any(row.random for row in spec.all_rows.values()):
        planned = [
            {
                "table": spec.table,
                "profile": cell.experiment.profile,
                "weights_source": RANDOM if spec.all_rows[cell.row].random else "pretrained",
            }
            for cell in cells
        ]
        check_no_mixed_weights(pd.concat([open_results(out, spec).runs, pd.DataFrame(planned)]))


def publish_table(
    spec: TableSpec, measurements: Sequence[Measurement], out: Path, folder: Path
) -> TableResults:
    """Add new runs of `folder` to those that `out` has, then write `<table>.csv` and `.md`.

    Results of other machines in the CSV are kept.
    """
    path = out / f"{spec.table}.csv"
    out.mkdir(parents=True, exist_ok=True)
    measured = {line["run"] for line in measurements}
    publish_runs([r.folder for r in Run.find_all(folder) if r.hash in measured], out)
    with FileLock(f"{path}.lock"):  # two tables at once must not lose each other's lines
        old = open_results(out, spec)
        results = TableResults(spec, add_measurements(old.runs, measurements, spec))
        write_results(path, results)
    write_atomically(path.with_suffix(".md"), render_markdown(results, out))
    return results
