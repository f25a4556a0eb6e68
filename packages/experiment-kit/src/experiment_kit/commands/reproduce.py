"""The command that runs cells of every table of every paper, and writes the index of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from experiment_kit.app_files import find_app_folder, read_settings
from experiment_kit.commands.index import write_index
from experiment_kit.commands.table import (
    print_failures,
    publish_table,
    read_measurements,
    select_cells_with_data,
    select_startable_runs,
)
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs, print_plan, run_missing
from experiment_kit.launch.options import LaunchOptions, make_folders
from experiment_kit.launch.overlays import NO_OVERLAY, list_overlays
from experiment_kit.launch.plan import EigenvalueOptions, Experiment, find_data, plan_runs
from experiment_kit.papers.spec import ALL, Cell, Setting, TableSpec, find_tables, parse_part
from experiment_kit.papers.values import check_name
from experiment_kit.run import Run

PROFILE = "smoke"  # the only one that takes substitutes
SAMPLES = 8  # for eigenvalues


@dataclass(frozen=True)
class SmokeRun:
    """The cells of a table that are run, and what replaces the paper's data, if anything."""

    spec: TableSpec
    cells: Sequence[Cell]
    substitute: str = ""

    @property
    def note(self) -> str:
        """A sentence on the substitute, for readers of the results."""
        text = f"A smoke test of the code path, no reproduction: {self.substitute}."
        return text if self.substitute else ""


def reproduce(profile: str = PROFILE, paper: str = ALL, **options: Any) -> None:
    """Run cells of every table of a paper, or of all papers, and write the index of the results.

    Finished runs are kept, interrupted ones resume, and one that fails stops no other. Everything
    is in `<folder>/reproduce/<profile>`; `index.md` is the index.

    Args:
        profile: smoke runs one cell of each table, on data that ships or is drawn here; small,
            paper or another name of profiles.yaml runs all cells whose data is here, for the
            seeds of the protocol validation
        paper: gfsa, attnscale, agf or record_straight, or all
        options: those of how runs are started
    """
    chosen = LaunchOptions(**options)
    root = Path(chosen.folder) / "reproduce" / profile
    chosen = replace(chosen, folder=str(root))
    console, specs = chosen.console, find_tables(paper)
    known = [p for spec in specs for p in list_overlays(spec.app, "profile")]
    check_name(profile, [*dict.fromkeys(known), NO_OVERLAY["profile"]], "profile to reproduce")
    tables = choose_cells(specs, profile, console)
    cells = [cell for table in tables for cell in table.cells]
    runs = plan_runs((cell.experiment for cell in cells), chosen.folder)
    possible = select_startable_runs(runs, console)
    if chosen.dry_run == "commands":
        print_plan(possible, chosen)
        return
    if chosen.dry_run:
        print_cells(tables, possible, console)
        return
    make_folders(folder=chosen.folder)
    failures = run_missing(possible, chosen)
    for table in tables:
        remark = " ".join(filter(None, [table.note, table.spec.remark]))
        spec, found = replace(table.spec, remark=remark), read_measurements(table.cells, runs)
        publish_table(spec, found, root / "tables", root)
    notes = {table.spec.table: table.note for table in tables}
    write_index(root / "tables", root / "index.md", notes)
    _print_summary(tables, runs, console)
    if failures:
        raise UserError(f"{count_runs(failures)} did not finish; the others are in the index")


def choose_cells(specs: Sequence[TableSpec], profile: str, console: Console) -> list[SmokeRun]:
    """Choose the cells of each table that a profile runs; print the tables that have none."""
    tables = []
    for spec in specs:
        if profile == PROFILE:
            chosen = choose_smoke_run(spec)
        else:
            every = spec.list_cells(profile, NO_OVERLAY["protocol"], rows=spec.default_rows)
            found = select_cells_with_data(every, console)
            chosen = SmokeRun(spec, found) if found else None
        if chosen is None:
            console.print(f"left out: {spec.table}: no cell has data that is here")
        else:
            tables.append(chosen)
    return tables


def print_cells(
    tables: Sequence[SmokeRun], runs: Mapping[Experiment, Run], console: Console
) -> None:
    """List every cell with its run and the substitute; tables may share a run."""
    for table in tables:
        note = f" ({table.substitute})" if table.substitute else ""
        for cell in (cell for cell in table.cells if cell.experiment in runs):
            e = cell.experiment
            start = f", starts from {runs[e.start].folder}" if e.start else ""
            place = f"{cell.table}: {cell.row}, {cell.column}"
            text = f"{place}: {e.source} of {runs[e].folder}{start}{note}"
            console.print(escape(text), soft_wrap=True, highlight=False)
    folders = {run.folder for run in runs.values()}
    console.print(f"{len(tables)} tables share {count_runs(len(folders))}")


def _print_summary(
    tables: Sequence[SmokeRun], runs: Mapping[Experiment, Run], console: Console
) -> None:
    print_failures([cell for table in tables for cell in table.cells], runs, console)
    count = len(tables)
    for table in tables:
        experiments = [cell.experiment for cell in table.cells]
        reports = [runs[e].folder / f"{e.source}.json" for e in experiments]
        if not any(report.is_file() for report in reports):
            count -= 1
            text = (
                f"{table.spec.table} has no measured cell, see {min(reports).with_name('log.txt')}"
            )
            console.print(escape(text), soft_wrap=True, highlight=False)
    console.print(f"{count} of {len(tables)} tables have a measured cell")


@cache
def find_substitute(app: str, data: str, backbone: str) -> Setting:
    """Return the setting of `smoke.yaml` for what a paper trains, with the arguments of all cells.

    The first pattern of `data/backbone` that matches counts; it names data that ships and a small
    network. Where none matches, the setting has arguments alone.
    """
    path = (find_app_folder(app) or Path()) / f"{PROFILE}.yaml"
    settings = read_settings(path) if path.is_file() else {}
    cells = settings.get("cells", {}).items()
    found: Any = next((s for pattern, s in cells if fnmatch(f"{data}/{backbone}", pattern)), {})
    always = parse_part(Setting, {"args": settings.get("args", [])})
    return always.refine(parse_part(Setting, found))


def choose_smoke_run(spec: TableSpec) -> SmokeRun | None:
    """Choose the first cell whose data ships, else the first whose data has a substitute.

    The cell has the profile smoke and seed 0. None where there is neither.
    """
    fallback = None
    for row, column in product(spec.rows, spec.columns):
        app, setting = spec.rows[row].app or spec.app, spec.setting(row, column)
        found = find_substitute(app, setting.data, setting.backbone)
        if found.data or found.backbone:
            fallback = fallback or (row, column, found)
        elif isinstance(find_data(app, setting.data), Path):
            return _make_run(spec, row, column, found)
    return fallback and _make_run(spec, *fallback)


def _make_run(spec: TableSpec, row: str, column: str, finer: Setting) -> SmokeRun:
    """Make the run of a refined cell, and of what it starts from as well."""
    chosen, start, before = spec.rows[row], spec.start, spec.setting(row, column)
    if start:
        start = start.refine(find_substitute(chosen.app or spec.app, start.data, start.backbone))
    at = {column: chosen.at.get(column, Setting()).refine(finer)}
    eigenvalues = EigenvalueOptions(SAMPLES) if spec.eigenvalues else None
    refined = replace(
        spec, rows={row: replace(chosen, at=at)}, start=start, eigenvalues=eigenvalues
    )
    cells = refined.list_cells(PROFILE, NO_OVERLAY["protocol"], [0], [row], [column])
    names = f"{finer.data or before.data} with {finer.backbone or before.backbone}"
    printed = f"{before.data} with {before.backbone}"
    return SmokeRun(spec, cells, f"{names} stands in for {printed}" if names != printed else "")
