"""The command that trains methods on one data set and compares them: a table and a page."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs, print_plan, run_missing
from experiment_kit.launch.grid import expand_grid, read_grid
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.options import (
    check_jobs,
    check_list,
    check_seeds,
    make_folders,
    split_arguments,
)
from experiment_kit.launch.overlays import choose_overlays, choose_seeds, read_app_defaults
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.pages.records import RunRecord, read_record
from experiment_kit.run import Run
from experiment_kit.run_files import is_finite

MISSING = "–"
ABOUT = (
    "Mean ± sample standard deviation over seeds; a method without numbers has no finished run. "
    "Samples or steps per second are of one device during training. High / low frequency and "
    "cosine are of the tokens after the last layer: a low ratio and a cosine near 1 show "
    "over-smoothing."
)


def compare(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    methods: Sequence[str] | None = None,
    recipe: str | None = None,
    profile: str | None = None,
    protocol: str = "validation",
    seeds: Sequence[int] | None = None,
    args: str = "",
    grid: str = "",
    jobs: int = 0,
    folder: str = "runs",
    dry_run: bool = False,
    launcher: Literal["local", "ray", "slurm"] = "local",
    address: str = "",
) -> None:
    """Train what is missing of each method, then print and draw the methods side by side.

    One recipe trains all methods: where it depends on the method, that of the last one. Each point
    of a grid is a run of its own, of the methods that have the option. The page is
    `<folder>/<app>/<data>-<backbone>/compare.html`, or `grid.html`.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, by a name in configs/data of the app; its default is that of the app
        backbone: a model, by a name in configs/backbone; its default is that of the data set
        methods: such as [plain,gfsa], names in configs/method; plain is the model without a
            mechanism; the default is that of the app
        recipe: optimizer and length of training, by a name in configs/recipe; its default is that
            of the data set
        profile: smoke, small or another name in configs/profile, which make a run shorter; paper
            for the full one; its default is that of the data set
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name in configs/protocol
        seeds: such as [0,1,2], each from 0 to 4294967295; the default is those of the protocol,
            else [0]
        args: options for the app in one text, such as "--trainer.max_epochs=3"; options with a dot
            may also be given as they are
        grid: values of options, such as model.filter.K=2,3,5; several with spaces between multiply;
            or a file of them, or a name in configs/grid
        jobs: runs at a time; 0 is one for each GPU, or for each core without a GPU
        folder: the folder of the runs
        dry_run: list the runs, and train nothing
        launcher: where runs are started: local is this machine, ray and slurm are many machines
        address: that of a Ray cluster, such as head:6379; local is ray or slurm on this machine
    """
    check_jobs(jobs)
    check_list("methods", methods)
    extra = split_arguments(args)
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    methods = read_app_defaults(app)["methods"] if methods is None else methods
    chosen: dict[str, Any] = choose_overlays(app, data, method=[*methods][-1], **names)
    if seeds is None:
        seeds = choose_seeds(app, [0], **chosen)
    check_seeds(seeds)
    if not dry_run:
        make_folders(folder=folder)
    single = [
        Experiment(app=app, method=method, seed=seed, args=extra, **chosen)
        for seed in seeds
        for method in methods
    ]
    experiments = expand_grid(single, read_grid(app, grid))
    console, runs = Console(), plan_runs(experiments, folder)
    if dry_run:
        print_plan(runs, console)
        return
    launch = choose_launcher(launcher, address, folder)
    failures = run_missing(runs, folder, jobs, console, launch)
    title = ", ".join(name for name in (*chosen.values(), args) if name not in ("", "validation"))
    options = {"methods": ",".join(methods), "seeds": ",".join(map(str, seeds)), **chosen}
    command = format_command(app, grid=grid, args=args, **options)
    show_comparison(title, command, runs, "grid.html" if grid else "compare.html", console)
    if failures:
        raise UserError(f"{count_runs(failures)} did not finish; the others are in the table")


def format_command(app: str, **options: str) -> str:
    """Return the call of make that names every option of a comparison; "" chooses no overlay.

    >>> format_command("nlp", data="cola", methods="plain,gfsa", args="--model.filter.K=5", grid="")
    'make nlp DATA=cola METHODS=plain,gfsa ARGS=--model.filter.K=5'
    """
    given = {key: value for key, value in options.items() if value or key not in ("args", "grid")}
    values = (
        f"{key.upper()}={shlex.quote(value) if value else ''}" for key, value in given.items()
    )
    return " ".join(["make", app, *values])


def show_comparison(
    title: str, command: str, runs: Mapping[Experiment, Run], page: str, console: Console
) -> None:
    """Print the table of the finished runs, and write the page beside their folders."""
    # here, since matplotlib takes a second to import
    from experiment_kit.commands.comparison_page import write_comparison_page

    records = [
        record
        for e, run in runs.items()
        if (record := read_record(e.name, run.folder, profile=e.profile or "paper"))
    ]
    labels = list(dict.fromkeys(e.name for e in runs))
    head, rows = format_comparison(labels, records)
    console.print(*make_tables(title, head, rows, console.width))
    path = next(iter(runs.values())).folder.parents[1] / page
    write_comparison_page(path, title, command, labels, records)
    logs = f"tensorboard --logdir {shlex.quote(str(path.parent))}"
    console.print(f"[bold]{escape(str(path))}[/] has the figures; logs: {escape(logs)}")


def make_tables(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[Table]:
    """Make tables that fit a terminal: one, transposed if that fits better, or several."""
    columns = list(zip(head, *rows, strict=True))
    transposed = [tuple(head), *map(tuple, rows)]
    if _measure_width(columns) > width:
        columns = transposed if len(transposed) <= len(columns) else columns
    first, *others = columns
    parts: list[list[Sequence[str]]] = [[first]]
    for column in others:
        if len(parts[-1]) > 1 and _measure_width([*parts[-1], column]) > width:
            parts.append([first])
        parts[-1].append(column)
    return [_make_table(title if i == 0 else "", part) for i, part in enumerate(parts)]


def _measure_width(columns: Sequence[Sequence[str]]) -> int:
    return 1 + sum(max(map(cell_len, column)) + 3 for column in columns)


def _make_table(title: str, columns: Sequence[Sequence[str]]) -> Table:
    table = Table(title=escape(title) or None, box=box.SIMPLE)
    for i, (name, *_) in enumerate(columns):
        table.add_column(escape(name), justify="right" if i else "left", no_wrap=True)
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*map(escape, row))
    return table


def format_comparison(
    methods: Sequence[str], records: Sequence[RunRecord]
) -> tuple[list[str], list[list[str]]]:
    """Return the head of the table and a row of text for each method."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name, value in collect_numbers(record).items():
            found[record.label][name].append(value)
    names = list(dict.fromkeys(name for method in found.values() for name in method))
    rows = [[m, *(format_mean(found[m][name]) for name in names)] for m in methods]
    return ["method", *names], rows


def collect_numbers(record: RunRecord) -> dict[str, float]:
    """Return the size, the scores and the speed of a run, and how smooth its tokens are."""
    metrics = record.result["metrics"].items()
    numbers = {"parameters": record.result.get("parameters")}
    times = {name: value for name, value in metrics if name.startswith("time/")}
    numbers |= {n.removeprefix("test/"): value for n, value in metrics if n not in times}
    if (steps := record.scalars.get("z_run/steps_per_second")) is not None:
        options = record.config.get("data", {}).get("init_args", {})
        size = options.get("batch_size")  # speech has seconds a batch
        numbers["samples/s" if size else "steps/s"] = float(steps.median()) * (size or 1)
    if depth := record.spectral.get("depth"):
        last = depth[-1]
        numbers |= {"HFC/LFC": last.get("hfc_lfc"), "token cosine": last.get("token_cosine")}
    numbers |= times
    return {name: value for name, value in numbers.items() if is_finite(value)}


def format_mean(values: Sequence[float]) -> str:
    """Write a mean with four digits, or a count in full.

    >>> format_mean([22050736, 22050736]), format_mean([0.5, 0.75]), format_mean([])
    ('22,050,736', '0.625 ± 0.18', '–')
    """
    if not values:
        return MISSING
    if all(isinstance(value, int) for value in values):
        return f"{values[0]:,}"
    deviation = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{deviation}"
