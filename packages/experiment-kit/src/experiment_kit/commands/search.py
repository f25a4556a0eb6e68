"""The command that searches a grid for the best point of each method, by a validation metric."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml
from attention_core.checks import MAX_ORDER
from rich.console import Console
from rich.markup import escape

from experiment_kit.cli import read_option
from experiment_kit.commands.compare import format_command, make_tables
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import run_missing
from experiment_kit.launch.grid import (
    Grid,
    check_grid,
    find_option_names,
    find_own_options,
    read_grid,
    set_options,
    shorten_key,
)
from experiment_kit.launch.jobs import default_workers
from experiment_kit.launch.launchers import LaunchJobs, choose_launcher
from experiment_kit.launch.options import (
    check_jobs,
    check_list,
    check_seeds,
    make_folders,
    split_arguments,
)
from experiment_kit.launch.overlays import choose_overlays, choose_seeds, read_app_defaults
from experiment_kit.launch.plan import Experiment, load_app, plan_configs, plan_runs
from experiment_kit.launch.study import (
    SEED,
    GridStudy,
    count_points,
    covers_grid,
    hold_study,
    import_optuna,
    open_study,
    read_point,
)
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import is_finite, read_or_warn, read_result


@dataclass(frozen=True)
class Search:
    """The search of one method: its experiments, one a seed, the values to try, and the metric."""

    experiments: Sequence[Experiment]
    space: Grid
    metric: str
    trials: int
    folder: str
    command: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config of the first seed before an option is set."""
        return plan_configs(self.experiments[:1])[self.experiments[0]]

    @cached_property
    def name(self) -> str:
        """The method, and a hash over what the values of the study depend on."""
        runs = [run.folder.name for run in self.runs]
        content = json.dumps([runs, self.space, self.metric])
        return f"{self.experiments[0].method}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of the seeds before an option is set."""
        return [*plan_runs(self.experiments, self.folder).values()]

    @property
    def path(self) -> Path:
        """The folder of the page and the chosen overlay; the journal is beside it."""
        return self.runs[0].folder.parents[1] / "search" / self.name

    @property
    def title(self) -> str:
        """The names of the overlays."""
        e = self.experiments[0]
        names = (e.method, e.data, e.backbone, e.recipe, e.profile, e.protocol)
        return ", ".join(name for name in names if name)

    @property
    def sampler(self) -> str:
        """The way in which points are chosen."""
        if covers_grid(self.space, self.trials):
            return "all of the grid"
        return f"chosen by a tree-structured Parzen estimator (TPE), seed {SEED}"

    @property
    def split(self) -> str:
        """The samples that the metric is measured on."""
        if read_option(self.config, "data.init_args.protocol") == "test":
            return (
                "the split of data.protocol=test, which is the test split of most data sets: the "
                "test score of the chosen point is then an upper bound"
            )
        return "the validation split"

    def set_point(self, point: Mapping[str, str]) -> list[Experiment]:
        """Return the experiments of a point, one a seed."""
        ordered = {key: point[key] for key in self.space}
        return [set_options(e, ordered, self.space) for e in self.experiments]

    def plan_points(self, points: Iterable[Mapping[str, str]]) -> list[dict[Experiment, Run]]:
        """Plan the runs of each point."""
        parts = [self.set_point(point) for point in points]
        runs = plan_runs([e for part in parts for e in part], self.folder)
        return [{e: runs[e] for e in part} for part in parts]

    def read_scores(self, runs: Mapping[Experiment, Run]) -> list[float | None]:
        """Return the metric of each run; None for one without a result, or without a number.

        Raises UserError, with the metrics that there are, for a result that lacks this one.
        """
        scores: list[float | None] = []
        for e, run in runs.items():
            expected = {"app": e.app, "method": e.method}
            result = read_or_warn(read_result, run.folder, **expected)
            metrics = result["metrics"] if result else {}
            if result and self.metric not in metrics:
                names = ", ".join(metrics) or "no metric"
                raise UserError(f"--select={self.metric}: {run.folder}/result.json has {names}")
            value = metrics.get(self.metric)
            scores.append(value if is_finite(value) else None)
        return scores


def search(
    app: str,
    data: str | None = None,
    grid: str = "",
    trials: int = 20,
    select: str = "",
    backbone: str | None = None,
    methods: Sequence[str] | None = None,
    recipe: str | None = None,
    profile: str | None = None,
    protocol: str = "validation",
    seeds: Sequence[int] | None = None,
    args: str = "",
    jobs: int = 0,
    folder: str = "runs",
    launcher: Literal["local", "ray", "slurm"] = "local",
    address: str = "",
) -> None:
    """Search GRID for the best point of each method by a validation metric, with Optuna.

    A trial is a point; its value is the mean of the metric over the seeds. All points are tried
    where the trials reach their number, else a tree-structured Parzen estimator chooses from them;
    its choice depends on the jobs. The same command goes on after an interruption, and with more
    trials after its end. Each method has a study of its own, in
    `<folder>/<app>/<data>-<backbone>/search/<study>`: search.html, and chosen.yaml, an overlay.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, by a name in configs/data of the app; its default is that of the app
        grid: values of options, such as model.filter.K=2,3,5; several with spaces between multiply;
            or a file of them, or a name in configs/grid
        trials: the largest number of points that are tried, for each method
        select: a metric on validation data, such as val/accuracy; the default is the one that
            chooses the epoch
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
        jobs: runs at a time; 0 is one for each GPU, or for each core without a GPU
        folder: the folder of the runs
        launcher: where runs are started: local is this machine, ray and slurm are many machines
        address: that of a Ray cluster, such as head:6379; local is ray or slurm on this machine
    """
    import_optuna()
    check_jobs(jobs)
    check_list("methods", methods)
    if not 1 <= trials <= MAX_ORDER:
        raise UserError(f"--trials={trials}: expected a number from 1 to {MAX_ORDER}")
    metric = _check_metric(app, select)
    space = read_grid(app, grid)
    if not space:
        raise UserError("--grid has no option: write model.filter.K=2,3,5, or a file of a grid")
    extra = split_arguments(args)
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    named = read_app_defaults(app)["methods"] if methods is None else methods
    chosen: dict[str, Any] = choose_overlays(app, data, method=[*named][-1], **names)
    seeds = choose_seeds(app, [0], **chosen) if seeds is None else seeds
    check_seeds(seeds)
    make_folders(folder=folder)
    single = [
        Experiment(app=app, method=method, seed=seed, args=extra, **chosen)
        for seed in seeds
        for method in named
    ]
    own = find_own_options(single, space)
    check_grid(single, own)
    if methods and (without := [method for method in methods if not own[method]]):
        raise UserError(f"--grid has no option of {', '.join(without)}: leave it out of --methods")
    searches, workers = [], jobs or (default_workers() if launcher == "local" else 0)
    for method in (method for method in named if own[method]):
        _check_workers(workers, launcher, covers_grid(own[method], trials))
        options = {"methods": method, "seeds": ",".join(map(str, seeds)), **chosen}
        options |= {"trials": str(trials), "select": metric}
        if not covers_grid(own[method], trials):
            options["jobs"] = str(workers)  # its points depend on them
        call = format_command(f"search APP={app}", grid=grid, args=args, **options)
        experiments = [e for e in single if e.method == method]
        searches.append(Search(experiments, own[method], metric, trials, folder, call))
    launch = choose_launcher(launcher, address, folder)
    failures = sum(run_search(found, workers, Console(), launch) for found in searches)
    if failures:
        raise UserError(f"{failures} trials have no value: the logs of their runs say why")


def _check_workers(workers: int, launcher: str, is_whole: bool) -> None:
    """Raise UserError where points are chosen and a cluster decides how many run at a time."""
    if not workers and not is_whole:
        raise UserError(
            f"--launcher={launcher} needs --jobs for fewer trials than points, which depend on"
            " how many are tried at a time"
        )


def _check_metric(app: str, select: str) -> str:
    """Return the metric to select by, by default that of the epoch; UserError for any other."""
    spec = load_app(app)
    known = [spec.monitor, *(m for m in spec.report_train_metrics if m.startswith("val/"))]
    if not select:
        return spec.monitor
    if select.startswith(("test/", "last/")):
        raise UserError(f"--select={select} is measured on test samples, which must not choose: "
                        f"select by {' or '.join(known)}")  # fmt: skip
    if select not in known:
        raise UserError(f"--select={select}: results of {app} have {', '.join(known)}")
    return select


def run_search(
    found: Search, workers: int, console: Console, launch: LaunchJobs | None = None
) -> int:
    """Try the points of a method that have no value, then show all; return how many failed."""
    points = count_points(found.space)
    number = f"{min(found.trials, points)} of {points} points, {found.sampler}"
    text = f"{number}; {found.metric} on {found.split}"
    console.print(f"[bold]{escape(found.title)}[/]: {escape(text)}", soft_wrap=True)
    journal = found.path.with_suffix(".journal")
    with hold_study(found.path, is_shared=launch is not None) as check_owner:
        study = open_study(
            journal, found.space, found.trials, _is_higher_better(found), check_owner
        )
        study.requeue_unfinished()
        failures = try_points(found, study, workers, console, launch)
        show_search(found, study, console)
    return failures


def _is_higher_better(found: Search) -> bool:
    # here, since matplotlib takes a second to import
    from experiment_kit.commands.comparison_page import is_higher_better

    monitor = load_app(found.experiments[0].app).monitor  # its maximum chooses the epoch
    return found.metric == monitor or is_higher_better(found.metric) is True


def try_points(
    found: Search,
    study: GridStudy,
    workers: int,
    console: Console,
    launch: LaunchJobs | None = None,
) -> int:
    """Run the points of a study until it has all of its trials; return how many failed.

    All are one batch where every point is tried, else a batch has a run for each worker.
    """
    size = math.ceil(workers / len(found.experiments))
    if covers_grid(found.space, found.trials):
        size = study.trials
    tried, failures = {read_point(trial) for trial in study.list_finished()}, 0
    console.print(f"{len(tried)} of {study.trials} trials have a value")
    while batch := study.ask_batch(tried, size):
        planned = found.plan_points(trial.params for trial in batch)
        runs = {e: run for part in planned for e, run in part.items()}
        run_missing(runs, found.folder, workers, console, launch)
        for trial, part in zip(batch, planned, strict=True):
            scores = found.read_scores(part)
            numbers = [score for score in scores if score is not None]
            is_whole = len(numbers) == len(scores)
            study.tell_value(trial, fmean(numbers) if is_whole else None)
            failures += not is_whole
    return failures


def show_search(found: Search, study: GridStudy, console: Console) -> None:
    """Print the trials, write the chosen point as an overlay, and write the page."""
    # here, since matplotlib takes a second to import
    from experiment_kit.commands.search_page import write_search_page

    finished = study.list_finished()
    names = [shorten_key(key, found.space) for key in found.space]
    sentence, overlay = describe_choice(found, study), found.path / "chosen.yaml"
    rows = [
        [str(number), *(trial.params[key] for key in found.space), f"{trial.value:.4g}"]
        for number, trial in enumerate(finished, start=1)
    ]
    console.print(*make_tables(found.title, ["trial", *names, found.metric], rows, console.width))
    write_atomically(overlay, format_overlay(found, study))
    write_search_page(found, study)
    console.print(escape(sentence), soft_wrap=True, highlight=False)
    console.print(f"[bold]{escape(str(overlay))}[/] sets the chosen point: "
                  f"ARGS='-c {escape(str(overlay))}'", soft_wrap=True)  # fmt: skip


def describe_choice(found: Search, study: GridStudy) -> str:
    """Name the chosen point, its value, the number of trials and the split, in a sentence."""
    best, ties = study.find_best()
    point = ", ".join(f"{shorten_key(k, found.space)}={best.params[k]}" for k in found.space)
    seeds = ", ".join(str(e.seed) for e in found.experiments)
    kind = "highest" if _is_higher_better(found) else "lowest"
    count = len(study.list_finished())
    tied = f", which {ties} trials share (the first is chosen)" if ties > 1 else ""
    failed = f"; {study.trials - count} trials failed" if count < study.trials else ""
    return (
        f"Chosen: {point}, {found.metric} {best.value:.4g}, the {kind} of {count} trials{tied}"
        f"{failed}; seeds {seeds}; measured on {found.split}."
    )


def format_overlay(found: Search, study: GridStudy) -> str:
    """Return the chosen point as an overlay, which comes after that of the method."""
    best, _ = study.find_best()
    values: dict[str, Any] = {}
    experiment = found.set_point(best.params)[0]
    config = plan_configs([experiment])[experiment]
    for key in found.space:
        names = find_option_names(config, key)
        merge = values
        for name in names[:-1]:
            merge = merge.setdefault(name, {})
        merge[names[-1]] = reduce(lambda part, name: part[name], names, config)
    lines = [f"study {study.study.study_name} of {found.title}", describe_choice(found, study)]
    comment = "".join(f"# {line}\n" for line in lines)
    return comment + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
