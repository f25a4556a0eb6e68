"""The commands that train methods on one data set, and compare them: a table and a page."""

import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape

from experiment_kit.errors import NothingMeasuredError, UserError
from experiment_kit.launch.execute import print_plan, refuse_failures, run_missing
from experiment_kit.launch.options import ComparisonOptions, expand_grid, make_folders, read_grid
from experiment_kit.launch.overlays import fill_defaults
from experiment_kit.launch.plan import Experiment, find_absent_data, plan_configs, plan_runs
from experiment_kit.pages import records, tables
from experiment_kit.run import Run
from experiment_kit.run_files import is_finite, read_mapping

_HIGHER = "accuracy|score|f1|matthews|pearson|spearman|auroc|precision|recall"
_LOWER = "loss|error|perplexity|brier|(?<![a-z])(wer|cer|mae|bits)(?![a-z])"  # "answer" has wer
MARKED = (
    "Bold is best in its column, where a value's 95 % confidence interval (Student's t over two "
    "seeds or more) overlaps that of no other method, and every mean has all seeds: (2 of 3) is "
    "one without a seed that failed, or whose value is missing or not finite."
)


def train_methods(app: str, **options: Any) -> None:
    """Train a method with one seed, and show what Lightning shows; compare several.

    Options with a dot, as `--model.filter.K=5`, go to the app unchanged.

    Args:
        app: graph, nlp, sequence, speech or vision
        options: the overlays, the methods, the seeds, and how runs are started
    """
    chosen = ComparisonOptions(app=app, **options)
    if len(chosen.experiments) > 1 or chosen.dry_run or chosen.launcher != "local":
        run_comparison(chosen)
        return
    own = chosen.experiments[0].arguments(chosen.folder)
    os.execv(sys.executable, [sys.executable, "-m", f"attention_{app}", "fit", *own])


def compare_methods(app: str, grid: str = "", **options: Any) -> None:
    """Train what is missing of each method, then print and draw the methods side by side.

    One recipe trains all methods: where it depends on the method, that of the last one. Settings
    that a method by itself would have are printed first. Each point of a grid is a run of its own,
    of the methods that have the option. The page is
    `<folder>/<app>/<data>-<backbone>/compare.html`, or `grid.html`.

    Args:
        app: graph, nlp, sequence, speech or vision
        grid: options, such as "model.filter.K=2,3 model.filter.w1=1,2", which multiply; or a file
            of them, or a name in configs/grids.yaml
        options: the overlays, the methods, the seeds, and how runs are started
    """
    run_comparison(ComparisonOptions(app=app, **options), grid)


def run_comparison(chosen: ComparisonOptions, grid: str = "") -> None:
    """Train what is missing, and show it."""
    experiments, console = chosen.experiments, chosen.console
    runs = plan_runs(expand_grid(experiments, read_grid(chosen.app, grid)), chosen.folder)
    own = tabulate_own_recipes(experiments)
    if own.rows:
        console.print(own.note, markup=False)
        tables.print_page_table(own, console)
    first = {e.name: run for e, run in runs.items() if e.seed == experiments[0].seed}
    for run in dict.fromkeys(first.values()):
        if len(names := [name for name in first if first[name] == run]) > 1:
            reason = f"{run.folder}: an option or the grid replaces what tells them apart"
            print(f"warning: {' and '.join(names)} are one run, {reason}", file=sys.stderr)
    if chosen.dry_run:
        print_plan(runs, chosen)
        return
    failures = 0
    if missing := [e for e, run in runs.items() if not run.has_result]:
        make_folders(folder=chosen.folder)
        refuse_absent_data(missing)
        failures = run_missing(runs, chosen)
    show_comparison(runs, own, chosen, "grid.html" if grid else "compare.html")
    refuse_failures(failures, "table")


def refuse_absent_data(experiments: Sequence[Experiment]) -> None:
    """Raise UserError where the data is not here, unless an argument says where or what it is."""
    place = re.compile(r"--data(=|\.\S*(dir|file|folder|index|class_path|dataset_name)\b)")
    named = [e for e in experiments if not place.search(" ".join(e.args))]
    named = [e for e in named if not any("data" in own for own in e.own_settings)]
    for (_, data), reason in find_absent_data(named).items():
        raise UserError(f"{data} is not here: {reason}")


def tabulate_own_recipes(experiments: Sequence[Experiment]) -> tables.PageTable:
    """Return the settings that a method's own recipe would change in the recipe of all."""
    rows = []
    for e in {e.method: e for e in experiments}.values():
        names = {"backbone": e.backbone, "method": e.method, "profile": e.profile}
        recipe = fill_defaults(e.app, e.data, **names)["recipe"]
        if recipe != e.recipe:
            here, own = plan_configs([e, replace(e, recipe=recipe)]).values()
            found = records.compare_settings({"here": here, "its own": own})
            rows += [[e.method, *row] for row in found.rows]
    note = f"One recipe, {experiments[0].recipe}, trains all; alone, a method would have its own:"
    return tables.PageTable("own recipes", ("method", "setting", "here", "its own"), rows, note)


def show_comparison(
    runs: Mapping[Experiment, Run], own: tables.PageTable, options: ComparisonOptions, page: str
) -> None:
    """Print the table of the finished runs, and write the page beside their folders."""
    first, console = next(iter(runs)), options.console
    known = read_mapping(runs[first].folder / "data.json", "delete it") or {}
    for run in runs.values() if known else ():
        if change := run.diff_data(known):
            print(f"warning: {run.folder} was trained on other data: {change}", file=sys.stderr)
    finished = [
        record
        for e, run in runs.items()
        if (record := records.read_run_record(e.name, run.folder, profile=e.profile or "paper"))
    ]
    if not finished:
        raise NothingMeasuredError(f"no run finished: see {runs[first].folder}/log.txt")
    names = first.data, first.backbone, first.recipe, first.profile, first.protocol, options.args
    title = ", ".join(name for name in names if name not in ("", "validation"))
    methods = list(dict.fromkeys(e.name for e in runs))
    results = tabulate_methods(methods, finished, len({e.seed for e in runs}))
    tables.print_page_table(replace(results, label=title), console)
    path = runs[first].task_folder / page
    differing = records.compare_settings({r.label: r.config for r in finished if r.config})
    figures = records.draw_figures(methods, finished, title)
    context = {"title": title, "own": own, "results": results, "figures": figures}
    context |= {"differing": differing, "runs": records.tabulate_runs(finished, path)}
    try:
        tables.write_page(path, "compare.html", **context)
    except OSError as error:  # such as a disk that cannot be written
        console.print(f"{path} is not written: {error.strerror}", markup=False)
        return
    logs = f"tensorboard --logdir {shlex.quote(str(path.parent))}"
    console.print(f"[bold]{escape(str(path))}[/] has the figures; logs: {escape(logs)}")


def tabulate_methods(
    methods: Sequence[str], runs: Sequence[records.RunRecord], num_seeds: int
) -> tables.PageTable:
    """Return a row of means for each method, the best of a column without gaps in bold."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in runs:
        for name, value in collect_numbers(record).items():
            found[name][record.label].append(value)
    rows = [[method] for method in methods]
    marked = []
    for name, values in found.items():
        means = {method: tables.MeanDeviation.from_values(v) for method, v in values.items()}
        best = tables.find_best(means, is_higher_better(name))
        is_whole = all(len(seeds) == num_seeds for seeds in values.values())
        marked += [(methods.index(best), len(rows[0]))] if best is not None and is_whole else []
        for method, row in zip(methods, rows, strict=True):
            seeds = values.get(method, [])
            deviation = f" ± {stdev(seeds):.2g}" if len(seeds) > 1 else ""
            deviation += f" ({len(seeds)} of {num_seeds})" * (len(seeds) < num_seeds)
            text = f"{fmean(seeds):.4g}{deviation}" if seeds else tables.MISSING
            is_count = len({*seeds}) == 1 and isinstance(seeds[0], int)
            row.append(f"{seeds[0]:,}" if is_count else text)
    note = MARKED if len(methods) > 1 else ""
    return tables.PageTable("results", ["method", *found], rows, note, marked)


def is_higher_better(name: str) -> bool | None:
    """Return the direction of a metric by its name; None where it has none or is not known."""
    if re.search(_LOWER, name):
        return False
    return True if re.search(_HIGHER, name) else None


def collect_numbers(record: records.RunRecord) -> dict[str, float]:
    """Return the size, the scores and the times of a run, and how smooth its tokens are."""
    metrics = record.result["metrics"].items()
    numbers = {"parameters": record.result.get("parameters")}
    times = {name: value for name, value in metrics if name.startswith("time/")}
    numbers |= {n.removeprefix("test/"): value for n, value in metrics if n not in times}
    last = (record.spectral.get("depth") or [{}])[-1]
    numbers |= {"HFC/LFC": last.get("hfc_lfc"), "token cosine": last.get("token_cosine"), **times}
    return {name: value for name, value in numbers.items() if is_finite(value)}
