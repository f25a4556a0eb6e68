"""The command that plans tables: cells, runs, what is missing, and what the runs cost."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch.estimate import (
    ACCELERATORS,
    UTILIZATION,
    Accelerator,
    Estimate,
    drop_seed,
    estimate_runs,
)
from experiment_kit.launch.execute import count_runs
from experiment_kit.launch.obtain import list_missing_weights
from experiment_kit.launch.options import check_list, check_seeds, make_folders
from experiment_kit.launch.plan import Experiment, find_data, load_app, plan_runs
from experiment_kit.launch.sample_cost import MEASURED_BATCH
from experiment_kit.papers.spec import Cell, TableSpec, load_spec
from experiment_kit.papers.values import PAPER_NAMES, check_name, load_table
from experiment_kit.run import Run

ALL = "all"
_FACTS = ("data", "backbone", "method", "recipe")


@dataclass(frozen=True)
class PlannedTable:
    """A table, its cells, and the runs that train them, by experiment."""

    name: str
    cells: Sequence[Cell]
    runs: Mapping[Experiment, Run]


@dataclass(frozen=True)
class Cost:
    """The cost of the runs that are not finished.

    Times are seconds here and on a device, None is unknown; `unknown_here` and `unknown_device`
    count the runs that are not in these sums.
    """

    number: int = 0
    finished: int = 0
    here: float | None = 0.0
    device: float | None = 0.0
    memory: int | None = None
    disk: int | None = 0
    unknown_here: int = 0
    unknown_device: int = 0


def plan_tables(
    name: str,
    profile: str = "paper",
    protocol: str = "validation",
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    accelerator: str = "a100",
    utilization: float = UTILIZATION,
    measure: bool = True,
    folder: str = "runs",
) -> None:
    """Print what a table, the tables of a paper, or all of them need, and what their runs cost.

    Time and memory here are those of a measured step, kept in `<folder>/estimates.json`. The time
    on the accelerator is the FLOPs of the run over its peak at the run's precision and the
    utilization. Nothing is trained.

    Args:
        name: a table, such as agf-table-1; gfsa, attnscale, agf or record_straight for all tables
            of a paper; or all
        profile: the length of the runs: paper for the full one, or smoke, small or another name in
            configs/profile of the app
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name in configs/protocol
        seeds: such as [0,1,2], each from 0 to 4294967295; the default is those of the protocol,
            else [0,1,2]
        rows: such as [gfsa,agf], the keys of rows of the table; all by default
        columns: such as [cola], the keys of columns of the table; all by default
        accelerator: a100, h100, rtx_3090, rtx_4090 or v100
        utilization: the share of the accelerator's peak that a run reaches, above 0, at most 1
        measure: measure a step here where it is not known; false leaves its time and memory unknown
        folder: the folder of the runs and of the measured steps
    """
    console = Console()
    device = ACCELERATORS[check_name(accelerator.lower(), ACCELERATORS, "accelerator")]
    if not 0 < utilization <= 1:
        raise UserError(f"--utilization={utilization}: a share of the peak is above 0, at most 1")
    if seeds is not None:
        check_seeds(seeds)
    check_list("rows", rows)
    check_list("columns", columns)
    make_folders(folder=folder)
    specs = find_tables(name)
    if len(specs) > 1 and (rows or columns):
        raise UserError("--rows and --columns choose from one table: name it")
    chosen = {"profile": profile or "paper", "protocol": protocol, "seeds": seeds}
    cells = {s.table: _list_cells(s, rows=rows, columns=columns, **chosen) for s in specs}
    trained = {name: _list_trained(found) for name, found in cells.items()}
    runs = plan_runs((e for found in trained.values() for e in found), folder)
    tables = [
        PlannedTable(name, cells[name], {e: runs[e] for e in found})
        for name, found in trained.items()
    ]
    estimates = estimate_runs(runs, folder, measure)
    if len(tables) == 1:
        console.print(_list_runs(tables[0], estimates, device, utilization))
        if shared := list_shared_runs(tables[0], profile or "paper", protocol):
            counts = ", ".join(f"{number} of {table}" for table, number in shared.items())
            console.print(f"shared with other tables: {counts}", highlight=False)
    else:
        _print_papers(tables, estimates, device, utilization, console)
    for sentence in _explain(runs, estimates, device, utilization):
        console.print(sentence, highlight=False)


def find_tables(name: str) -> list[TableSpec]:
    """Return a table, the tables of a paper, or `all`; UserError with near names for another."""
    files = {path.stem: path for app in list_apps() for path in find_table_specs(app)}
    papers = {table: load_table(table).paper for table in files}
    check_name(name, [*dict.fromkeys(papers.values()), ALL, *sorted(files)], "table or paper")
    return [load_spec(p) for table, p in files.items() if name in (ALL, papers[table], table)]


def _list_cells(spec: TableSpec, rows: Sequence[str] | None, **chosen: Any) -> list[Cell]:
    rows = rows or [key for key, row in spec.all_rows.items() if not row.random]
    return spec.list_cells(rows=rows, **chosen)


def _list_trained(cells: Iterable[Cell]) -> list[Experiment]:
    """List the experiments that train, and those that they start from."""
    trained = [cell.experiment for cell in cells if cell.experiment.is_trained]
    return list(dict.fromkeys(e for one in trained for e in (one.start, one) if e))


def list_shared_runs(table: PlannedTable, profile: str, protocol: str) -> dict[str, int]:
    """Count the experiments that other tables of the paper have too, by their names."""
    own = {drop_purpose(e) for e in table.runs}
    shared = {}
    for spec in find_tables(load_table(table.name).paper):
        if spec.table != table.name and protocol in spec.all_protocols:
            chosen = {"profile": profile, "protocol": protocol}
            cells = _list_cells(spec, None, **chosen)
            if number := len(own & {drop_purpose(e) for e in _list_trained(cells)}):
                shared[spec.table] = number
    return shared


def drop_purpose(experiment: Experiment) -> Experiment:
    """Return the experiment of the run alone, whatever is measured on it."""
    return replace(experiment, source="result", eigenvalues=None)


def sum_costs(
    runs: Mapping[Experiment, Run],
    estimates: Mapping[Experiment, Estimate],
    device: Accelerator,
    utilization: float,
) -> Cost:
    """Add up what is left to do of runs, each folder once; a sum of nothing known is None."""
    distinct = {run.folder: (e, run) for e, run in runs.items()}
    left = [estimates[drop_seed(e)] for e, run in distinct.values() if not run.has_result]
    times = [estimate.predict_seconds(device, utilization) for estimate in left]
    return Cost(
        len(distinct),
        len(distinct) - len(left),
        _add(estimate.seconds for estimate in left),
        _add(times),
        max((e.memory for e in left if e.memory is not None), default=None),
        _add(estimate.disk for estimate in left),
        [estimate.seconds for estimate in left].count(None),
        times.count(None),
    )


def _add(values: Iterable[Any]) -> Any:
    values = list(values)
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def format_time(seconds: float | None) -> str:
    """Write a duration in the unit that suits it.

    >>> [format_time(seconds) for seconds in (None, 0.0, 42, 300, 9000, 400_000)]
    ['?', '0 s', '42 s', '5.0 min', '2.5 h', '111 h']
    """
    if seconds is None:
        return "?"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            number = seconds / size
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(count: int | None) -> str:
    """Write a size in the unit that suits it.

    >>> format_bytes(None), format_bytes(3 * 2**20), format_bytes(5 * 2**29)
    ('?', '3.0 MiB', '2.5 GiB')
    """
    if count is None:
        return "?"
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 2**20:.1f} MiB"


def _list_runs(
    table: PlannedTable, estimates: Mapping[Experiment, Estimate], device: Accelerator, share: float
) -> Table:
    """Return a line for each experiment, with the cost of one seed, and the total of all."""
    groups: dict[Experiment, list[Run]] = {}
    for experiment, run in table.runs.items():
        groups.setdefault(drop_seed(experiment), []).append(run)
    varying = [f for f in _FACTS if len({getattr(e, f) for e in groups}) > 1] or ["method"]
    fixed = {getattr(e, f) for e in groups for f in _FACTS if f not in varying} - {""}
    lines = []
    for group, runs in groups.items():
        name = " ".join(filter(None, (getattr(group, fact) for fact in varying)))
        options = " ".join(argument.rpartition(".")[2] for argument in group.args)
        done = sum(run.has_result for run in runs)
        cost = Cost(len(runs), done)
        if estimate := estimates.get(group):
            device_seconds = estimate.predict_seconds(device, share)
            known = estimate.seconds, device_seconds, estimate.memory, estimate.disk
            cost = Cost(len(runs), done, *known)
        lines.append((f"{name} {options}".strip(), str(cost.number), cost))
    total = sum_costs(table.runs, estimates, device, share)
    lines.append(("total", str(total.number), total))
    counts = f"{_count(table.cells, 'cell')}, {count_runs(len(table.runs))}"
    title = f"{table.name}: {counts}; {' '.join(sorted(fixed))}; a line is the cost of one seed"
    return _build_listing(title, ("run", "seeds", "done"), device, lines)


def _print_papers(
    tables: Sequence[PlannedTable],
    estimates: Mapping[Experiment, Estimate],
    device: Accelerator,
    share: float,
    console: Console,
) -> None:
    """Print a line for each table of each paper, and the total of a paper, shared runs once."""
    used = Counter(run.folder for table in tables for run in {*table.runs.values()})
    papers: dict[str, list[PlannedTable]] = {}
    for table in tables:
        papers.setdefault(load_table(table.name).paper, []).append(table)
    together = {"all papers": [*tables]} if len(papers) > 1 else {}
    for paper, own in {**papers, **together}.items():
        lines: list[tuple[Any, ...]] = []
        for table in own if paper in papers else ():
            cost = sum_costs(table.runs, estimates, device, share)
            shared = sum(used[folder] > 1 for folder in {r.folder for r in table.runs.values()})
            lines.append((table.name, str(cost.number), str(shared), cost))
        total = sum_costs({e: r for t in own for e, r in t.runs.items()}, estimates, device, share)
        lines.append(("total", str(total.number), "", total))
        title = PAPER_NAMES.get(paper, paper)
        console.print(_build_listing(title, ("table", "runs", "shared", "done"), device, lines))


def _build_listing(
    title: str, headings: Sequence[str], device: Accelerator, lines: Sequence[tuple[Any, ...]]
) -> Table:
    """Return a table whose last line is the total; memory that nothing is known of is left out."""
    listing = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    listing.add_column(headings[0], overflow="fold")
    has_memory = any(line[-1].memory is not None for line in lines)
    sizes = ("memory", "disk") if has_memory else ("disk",)
    for heading in (*headings[1:], "here", *sizes, device.name):
        listing.add_column(heading, justify="right", no_wrap=True)
    for label, *counts, cost in lines:
        if cost is lines[-1][-1]:
            listing.add_section()
        memory = [format_bytes(cost.memory)] if has_memory else []
        listing.add_row(
            *(escape(label), *counts, str(cost.finished)),
            *(_mark_sum(format_time(cost.here), cost.unknown_here), *memory),
            *(format_bytes(cost.disk), _mark_sum(format_time(cost.device), cost.unknown_device)),
            style="bold" if cost is lines[-1][-1] else "",
        )
    return listing


def _mark_sum(text: str, unknown: int) -> str:
    return f">{text}" if unknown and text != "?" else text


def _count(items: Collection[Any], noun: str) -> str:
    return f"{len(items)} {noun}" + "s" * (len(items) != 1)


def _explain(
    runs: Mapping[Experiment, Run],
    estimates: Mapping[Experiment, Estimate],
    device: Accelerator,
    share: float,
) -> Iterable[str]:
    """Yield how the numbers are to be read, and what is missing with the command that gets it."""
    yield (
        f"{device.name}: the FLOPs of a run at {share:.0%} of {device.half / 1e12:g} TFLOP/s,"
        f" {device.single / 1e12:g} in float32; a step is three forward passes, sequences have"
        f" their greatest length, and small models reach less. Here: a measured step of at most"
        f" {MEASURED_BATCH} samples, scaled to the batch, without loading and monitoring."
    )
    unknown = [e.reason for e in estimates.values() if e.predict_seconds(device, share) is None]
    if unknown:
        reason = escape(f"{len(unknown)} of {len(estimates)} experiments: {unknown[0]}")
        yield f"no estimate, and so not in the sums: {reason}"
    yield from list_missing([e for e, run in runs.items() if not run.has_result])
    files = sorted({option for e in estimates.values() for option in e.missing})
    if files:
        yield f"missing files of weights: {escape(', '.join(files))}"


def list_missing(experiments: Collection[Experiment]) -> Iterable[str]:
    """Yield a sentence for the data and the weights that are not here, with their commands."""
    places = {(e.app, e.data): find_data(e.app, e.data) for e in experiments}
    absent = {key: place for key, place in sorted(places.items()) if isinstance(place, str)}
    offered = [data for app, data in absent if data in load_app(app).downloads]
    if offered:
        yield f"missing data, by make data DATA=<name>: {', '.join(offered)}"
    for (_, data), place in absent.items():
        if data not in offered:
            yield f"missing data: {data}: {escape(place)}"
    if backbones := list_missing_weights({(e.app, e.backbone) for e in experiments}):
        yield f"missing weights, by make weights MODEL=<name>: {', '.join(backbones)}"
