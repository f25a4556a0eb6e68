"""The command that runs cells of every table of every paper, and writes the index of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from experiment_kit.commands.table import (
    print_failures,
    publish_table,
    select_cells_with_data,
    select_startable_runs,
)
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs, run_missing
from experiment_kit.launch.jobs import FAILURE
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.options import check_jobs, make_folders
from experiment_kit.launch.overlays import NO_OVERLAY, list_overlays
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.papers.cost import ALL, find_tables
from experiment_kit.papers.index import write_index
from experiment_kit.papers.results import read_measurement
from experiment_kit.papers.spec import Cell, TableSpec
from experiment_kit.papers.stand_ins import PROFILE, choose_smoke_cell
from experiment_kit.papers.values import check_name, load_table
from experiment_kit.run import Run
from experiment_kit.run_files import read_or_warn


@dataclass(frozen=True)
class ReproducedTable:
    """A table, the cells of it that are run, and what stands in for the paper's data, if any."""

    spec: TableSpec
    cells: Sequence[Cell]
    stand_in: str = ""

    @property
    def note(self) -> str:
        """A sentence on what stands in, for readers of the results."""
        if not self.stand_in:
            return ""
        return f"A smoke test of the code path, no reproduction: {self.stand_in}."


def reproduce(
    profile: str = PROFILE,
    paper: str = ALL,
    jobs: int = 0,
    folder: str = "runs",
    dry_run: bool = False,
    launcher: Literal["local", "ray", "slurm"] = "local",
    address: str = "",
) -> None:
    """Run cells of every table of a paper, or of all papers, and write the index of the results.

    Finished runs are kept, interrupted ones resume, and one that fails stops no other. Everything
    is in `<folder>/reproduce/<profile>`; `index.md` and `reports/index.html` are the index.

    Args:
        profile: smoke runs one cell of each table, on data that ships or is drawn here; small,
            paper or another name in configs/profile runs all cells whose data is here, for the
            seeds of the protocol validation
        paper: gfsa, attnscale, agf or record_straight, or all
        jobs: runs at a time; 0 is one for each GPU, or for each core without a GPU
        folder: the folder of the runs
        dry_run: list table, cell, stand-in and run, and train nothing
        launcher: where runs are started: local is this machine, ray and slurm are many machines
        address: that of a Ray cluster, such as head:6379; local is ray or slurm on this machine
    """
    check_jobs(jobs)
    specs = find_tables(paper)
    known = [p for spec in specs for p in list_overlays(spec.app, "profile")]
    check_name(profile, [*dict.fromkeys(known), NO_OVERLAY["profile"]], "profile to reproduce")
    root, console = Path(folder) / "reproduce" / profile, Console()
    tables = choose_cells(specs, profile, console)
    cells = [cell for table in tables for cell in table.cells]
    runs = plan_runs((cell.experiment for cell in cells), str(root))
    possible = select_startable_runs(runs, console)
    if dry_run:
        print_cells(tables, possible, console)
        return
    make_folders(folder=str(root))
    launch = choose_launcher(launcher, address, str(root))
    failures = run_missing(possible, str(root), jobs, console, launch)
    for table in tables:
        _publish_cells(table, runs, root)
    notes = {table.spec.table: table.note for table in tables}
    results, page = root / "tables", root / "reports" / "index.html"
    write_index(results, root / "index.md", page, console, notes)
    _print_summary(tables, runs, console)
    if failures:
        raise UserError(f"{count_runs(failures)} did not finish; the others are in the index")


def choose_cells(
    specs: Sequence[TableSpec], profile: str, console: Console
) -> list[ReproducedTable]:
    """Choose the cells of each table that a profile runs; print the tables that have none."""
    tables = []
    for spec in specs:
        if profile == PROFILE:
            smoke = choose_smoke_cell(spec)
            chosen = ReproducedTable(spec, [smoke.cell], smoke.stand_in) if smoke else None
        else:
            rows = [key for key, row in spec.all_rows.items() if not row.random]
            every = spec.list_cells(profile, NO_OVERLAY["protocol"], rows=rows)
            found = select_cells_with_data(every, console)
            chosen = ReproducedTable(spec, found) if found else None
        if chosen is None:
            console.print(f"left out: {spec.table}: no cell has data that is here")
        else:
            tables.append(chosen)
    return tables


def print_cells(
    tables: Sequence[ReproducedTable], runs: Mapping[Experiment, Run], console: Console
) -> None:
    """List every cell with its run and what stands in; tables may share a run."""
    for table in tables:
        for cell in table.cells:
            if (run := runs.get(cell.experiment)) is None:
                continue
            e = cell.experiment
            start = f", starts from {runs[e.start].folder}" if e.start else ""
            text = f"{cell.table}: {cell.row}, {cell.column}: {e.source} of {run.folder}{start}"
            note = f" ({table.stand_in})" if table.stand_in else ""
            console.print(escape(text + note), soft_wrap=True, highlight=False)
    folders = {run.folder for run in runs.values()}
    console.print(f"{len(tables)} tables share {count_runs(len(folders))}")


def _publish_cells(table: ReproducedTable, runs: Mapping[Experiment, Run], root: Path) -> None:
    found = [
        measurement
        for cell in table.cells
        if (measurement := read_or_warn(read_measurement, cell, runs[cell.experiment].folder))
    ]
    remark = " ".join(filter(None, [table.note, table.spec.remark]))
    spec = replace(table.spec, remark=remark)
    publish_table(spec, load_table(spec.table), found, root / "tables", root)


def _print_summary(
    tables: Sequence[ReproducedTable], runs: Mapping[Experiment, Run], console: Console
) -> None:
    folders = {cell: runs[cell.experiment].folder for table in tables for cell in table.cells}
    made = {
        cell.table
        for cell, folder in folders.items()
        if (folder / f"{cell.experiment.source}.json").is_file()
    }
    print_failures(folders, console)
    for table in tables:
        if table.spec.table not in made:
            logs = sorted({str(folders[cell] / "log.txt") for cell in table.cells})
            reason = "" if any((folders[c] / FAILURE).is_file() for c in table.cells) else "not run"
            text = f"{table.spec.table} has no measured cell: {reason or 'FAILED'}, see {logs[0]}"
            console.print(escape(text), soft_wrap=True, highlight=False)
    console.print(f"{len(made)} of {len(tables)} tables have a measured cell")
