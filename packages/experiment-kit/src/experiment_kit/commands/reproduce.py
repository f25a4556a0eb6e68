"""The command that runs cells of every table of every paper, and writes the index of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from experiment_kit.app_files import find_app_folder, read_settings
from experiment_kit.commands import table
from experiment_kit.commands.index import write_index
from experiment_kit.errors import check_name
from experiment_kit.launch.execute import print_plan, refuse_failures, run_missing
from experiment_kit.launch.options import LaunchOptions, make_folders
from experiment_kit.launch.overlays import NO_OVERLAY, list_overlays
from experiment_kit.launch.plan import EigenvalueOptions, find_data, plan_runs
from experiment_kit.papers.spec import ALL, Cell, Setting, TableSpec, find_tables, parse_part

PROFILE = "smoke"  # the only one that takes substitutes
SAMPLES = 8  # for eigenvalues


@dataclass(frozen=True)
class SmokeRun:
    """The cells of a table that are run, and a sentence on what replaces its data, if anything."""

    spec: TableSpec
    cells: Sequence[Cell]
    note: str = ""


def reproduce_tables(profile: str = PROFILE, paper: str = ALL, **options: Any) -> None:
    """Run cells of every table of a paper, or of all papers, and write the index of the results.

    Finished runs are kept, interrupted ones resume, and one that fails stops no other. Everything
    is in `<folder>/reproduce/<profile>`; `index.md` is the index.

    Args:
        profile: smoke runs one cell of each table, on data that ships or is drawn here; small,
            paper or another name of profiles.yaml runs all cells whose data is here, by the
            protocol and the seeds of the paper
        paper: gfsa, attnscale, agf or record_straight, or all
        options: those of how runs are started
    """
    chosen = LaunchOptions(**options)
    root = Path(chosen.folder) / "reproduce" / profile
    chosen = replace(chosen, folder=str(root))
    console, specs = chosen.console, find_tables(paper)
    known = [p for spec in specs for p in list_overlays(spec.app, "profile")]
    check_name(profile, [*dict.fromkeys(known), NO_OVERLAY["profile"]], "profile to reproduce")
    smoke = profile == PROFILE
    tables = [choose_smoke_run(s) if smoke else SmokeRun(s, s.list_cells(profile)) for s in specs]
    cells = [cell for one in tables for cell in one.cells]
    runs = plan_runs((cell.experiment for cell in cells), chosen.folder)
    found = cells if smoke else table.select_runnable(cells, runs, console)
    possible = table.list_needed_runs(found, runs)
    if chosen.dry_run:
        print_plan(possible, chosen)
        return
    make_folders(folder=chosen.folder)
    failures = run_missing(possible, chosen)
    count = 0
    for one in tables:
        remark = " ".join(filter(None, [one.note, one.spec.remark]))
        if measured := table.read_measurements(one.cells, runs):
            spec = replace(one.spec, remark=remark)
            table.publish_table(spec, measured, root / "tables", runs.values())
            count += 1
        else:
            console.print(f"{one.spec.table} has no measured cell", highlight=False)
    write_index(root / "tables", root / "index.md", {x.spec.table: x.note for x in tables})
    console.print(f"{count} of {len(tables)} tables have a measured cell")
    refuse_failures(failures, "index")


@cache
def find_substitute(app: str, data: str, backbone: str) -> Setting:
    """Return the setting of `smoke.yaml` of the first pattern `data/backbone` that matches."""
    path = (find_app_folder(app) or Path()) / f"{PROFILE}.yaml"
    settings = read_settings(path) if path.is_file() else {}
    cells = settings.get("cells", {}).items()
    found: Any = next((s for pattern, s in cells if fnmatch(f"{data}/{backbone}", pattern)), {})
    always = parse_part(Setting, {"args": settings.get("args", [])})
    return always.refine(parse_part(Setting, found))


def choose_smoke_run(spec: TableSpec) -> SmokeRun:
    """Choose the first cell whose data ships, else the first, whose data has a substitute."""
    places = [*product(spec.rows, spec.columns)]
    for row, column in [*places, places[0]]:
        app, printed = spec.rows[row].app or spec.app, spec.setting(row, column)
        finer = find_substitute(app, printed.data, printed.backbone)
        if not (finer.data or finer.backbone) and isinstance(find_data(app, printed.data), Path):
            break
    if start := spec.start:
        start = start.refine(find_substitute(app, start.data, start.backbone))
    at = {column: spec.rows[row].at.get(column, Setting()).refine(finer)}
    rows = {row: replace(spec.rows[row], at=at)}
    eigenvalues = EigenvalueOptions(SAMPLES) if spec.eigenvalues else None
    refined = replace(spec, rows=rows, start=start, eigenvalues=eigenvalues)
    cells = refined.list_cells(PROFILE, NO_OVERLAY["protocol"], [0], [row], [column])
    name = f"{finer.data or printed.data} with {finer.backbone or printed.backbone}"
    before = f"{printed.data} with {printed.backbone}"
    note = f"A smoke test of the code path, no reproduction: {name} stands in for {before}."
    return SmokeRun(spec, cells, note if name != before else "")
