"""The command that makes a table: train what is missing, publish, print."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console
from rich.markup import escape

from experiment_kit.commands.search import Search
from experiment_kit.errors import NothingMeasuredError, UserError
from experiment_kit.launch import options as launch
from experiment_kit.launch.execute import Runs, print_plan, refuse_failures, run_missing
from experiment_kit.launch.overlays import NO_OVERLAY
from experiment_kit.launch.plan import Experiment, find_absent_data, load_app, plan_runs
from experiment_kit.papers import results
from experiment_kit.papers.cost import list_missing_weights
from experiment_kit.papers.provenance import publish_runs, read_runs
from experiment_kit.papers.render import print_table, render_markdown
from experiment_kit.papers.spec import PAPER, SELECTED, Cell, TableSpec, find_spec
from experiment_kit.run import Run
from experiment_kit.run_files import try_read, write_atomically

Place = tuple[str, str]  # row and column


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options on the cells of a table.

    Args:
        profile: the length of the runs: paper for the full one, or smoke, small or another name in
            configs/profiles.yaml of the app
        protocol: where the epoch is chosen: paper for the paper's own, which its spec names, or
            validation, test or another name of protocols.yaml
        source: text or released, where the settings of the paper's text and of its code differ;
            the default is that which the printed numbers follow
        seeds: such as 0,1,2, from 0 to 4294967295; by default the protocol's, else [0,1,2]
        rows: such as gfsa,agf, the keys of rows of the table; the printed ones by default
        columns: such as cola, the keys of columns of the table; all by default
    """

    profile: str = PAPER
    protocol: str = PAPER
    source: str = PAPER
    seeds: Sequence[int] | None = None
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        launch.check_seeds(self.seeds)
        launch.check_list("rows", self.rows)
        launch.check_list("columns", self.columns)
        if self.rows and self.source != PAPER:
            raise UserError("--rows and --source both choose rows: name one of them")

    @property
    def names(self) -> dict[str, Any]:
        """The options that `TableSpec.list_cells` takes."""
        return {field.name: getattr(self, field.name) for field in fields(CellOptions)}


@dataclass(frozen=True, kw_only=True)
class TableOptions(CellOptions, launch.LaunchOptions):
    """The options on the cells of a table, and on how their runs are started."""


def make_table(
    table: str, out: str = "docs/results", train: bool = True, select: bool = False, **options: Any
) -> None:
    """Make the cells of a paper's table that are missing, then print and publish it.

    Each run is a process; finished runs are kept, interrupted ones resume. Cells whose data is not
    here are left out; the cost of a model needs no data. The page is `<out>/<table>.md`.

    Args:
        table: a printed table, such as agf-table-1
        out: the folder of the published results: Markdown, CSV and runs.jsonl
        train: train what is missing; false renders what is there
        select: choose what the paper selects for each column, such as K, by a grid on held-out
            samples, and make the chosen cells as rows of their own
        options: those of the cells, and of how runs are started
    """
    chosen = TableOptions(**options)
    console, spec = chosen.console, find_spec(table)
    if select and not spec.grids:
        raise UserError(f"--select: {table} selects nothing on a validation split")
    if not chosen.dry_run:
        launch.make_folders(out=out, folder=chosen.folder)
    cells = spec.list_cells(**chosen.names)
    protocol = cells[0].experiment.protocol
    read_runs(Path(out))  # reports a mistake in the published runs before training
    runs = plan_runs((cell.experiment for cell in cells), chosen.folder)
    searches = list_searches(spec, cells, chosen) if select else {}
    tried = (e for s in searches.values() for point in s.points for e in s.set_point(point))
    if chosen.dry_run:
        source = spec.source if chosen.source == PAPER else chosen.source
        place = f"profile {chosen.profile}, protocol {protocol}, source {source}"
        console.print(f"{table}: {place}", highlight=False)
        print_plan(plan_runs(tried, chosen.folder) if select else runs, chosen)
    seeds = Counter((cell.row, cell.column) for cell in cells if cell.experiment.is_trained)
    least = results.MIN_SEEDS
    if train and min(seeds.values(), default=least) < least:
        console.print(f"fewer than {least} seeds have no verdict: --seeds=0,1,2 gives them one")
    found = select_runnable(cells, runs, console)
    if chosen.dry_run:
        return
    possible, failures = list_needed_runs(found, runs), 0
    if train:
        refuse_absent_weights(table, (e for e, run in possible.items() if not run.has_result))
    if train and select:
        found, failures = select_options(found, searches)
        runs = plan_runs((cell.experiment for cell in found), chosen.folder)
        possible = list_needed_runs(found, runs)
    failures += run_missing(possible, chosen) if train and possible else 0
    measurements = read_measurements(found, runs)
    if not measurements and (train or not Path(out, f"{table}.csv").is_file()):
        raise NothingMeasuredError(f"{table}: no cell is measured, and nothing is published")
    published = publish_table(spec, measurements, Path(out), runs.values())
    print_table(published, chosen.profile, protocol, console, chosen.columns or ())
    page, logs = Path(out) / f"{table}.md", f"tensorboard --logdir {shlex.quote(chosen.folder)}"
    console.print(f"[bold]{escape(str(page))}[/] has statistics and runs; curves: {escape(logs)}")
    refuse_failures(failures, "table")


def select_options(cells: list[Cell], searches: dict[Place, Search]) -> tuple[list[Cell], int]:
    """Search; return the cells with their best points as rows of their own, and the failures."""
    found, failures = [], 0
    for place, search in searches.items():
        own = [cell for cell in cells if (cell.row, cell.column) == place]
        if own:  # its data is here
            failures += search.run()
        for cell in own:
            experiment = launch.set_options(cell.experiment, search.best, search.space)
            found.append(replace(cell, row=f"{cell.row}{SELECTED}", experiment=experiment))
    return found, failures


def list_searches(
    spec: TableSpec, cells: Iterable[Cell], options: launch.LaunchOptions
) -> dict[Place, Search]:
    """Return the search on held-out samples of each row and column that has a grid."""
    tried: dict[Place, list[Experiment]] = {}
    for cell in (cell for cell in cells if cell.row in spec.grids):
        held_out = replace(cell.experiment, protocol=NO_OVERLAY["protocol"])
        tried.setdefault((cell.row, cell.column), []).append(held_out)
    grids, metric = spec.grids, load_app(spec.app).monitor
    return {
        place: Search(own, launch.read_grid(spec.app, grids[place[0]]), metric, options)
        for place, own in tried.items()
    }


def read_measurements(cells: Iterable[Cell], runs: Runs) -> list[results.Measurement]:
    """Read the cells that are measured; a damaged result is left out with a warning."""
    folders = ((cell, runs[cell.experiment].folder) for cell in cells)
    found = (try_read(results.read_measurement, cell, folder) for cell, folder in folders)
    return [measurement for measurement in found if measurement]


def select_runnable(cells: Sequence[Cell], runs: Runs, console: Console) -> list[Cell]:
    """Return the cells whose data is here or not needed; print what others lack."""

    def needs_data(e: Experiment) -> bool:
        return e.is_trained and not (e.source == "result" and runs[e].has_result)

    absent = find_absent_data(e for e in list_needed_runs(cells, runs) if needs_data(e))
    for (_, data), reason in absent.items():
        console.print(f"left out: {escape(f'{data}: {reason}')}")
    lost = {e for e in runs if (e.app, e.data) in absent and needs_data(e)}
    return [cell for cell in cells if not {cell.experiment, cell.experiment.start} & lost]


def refuse_absent_weights(table: str, experiments: Iterable[Experiment]) -> None:
    """Raise UserError where the weights that training starts from are not here."""
    if lost := list_missing_weights(e for e in experiments if e.is_trained):
        text = f"{table}: no weights of {', '.join(lost)}: allpass weights {lost[0]},"
        raise UserError(f"{text} or choose rows without them by --rows")


def list_needed_runs(cells: Iterable[Cell], runs: Runs) -> dict[Experiment, Run]:
    """Return the runs of cells, and before each the one that it starts from."""
    needed = (e for cell in cells for e in (cell.experiment.start, cell.experiment) if e)
    return {e: runs[e] for e in needed}


def publish_table(
    spec: TableSpec, measurements: Sequence[results.Measurement], out: Path, runs: Iterable[Run]
) -> results.TableResults:
    """Add measured ones of `runs` to those that `out` has, then write `<table>.csv` and `.md`."""
    path = out / f"{spec.table}.csv"
    out.mkdir(parents=True, exist_ok=True)
    measured = {line["run"] for line in measurements}
    publish_runs([r.folder for r in dict.fromkeys(runs) if r.hash in measured], out)
    with FileLock(f"{path}.lock"):  # two tables at once must not lose each other's lines
        old = results.open_results(out, spec)
        new = results.TableResults(spec, results.add_measurements(old.runs, measurements, spec))
        results.write_results(path, new)
    write_atomically(path.with_suffix(".md"), render_markdown(new, out))
    return new
