"""The command that searches a grid for the best point of each method, by a validation metric."""

import hashlib
import json
import math
import random
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from jsonargparse.typing import PositiveInt
from rich.markup import escape

from experiment_kit.app_files import read_option
from experiment_kit.commands.compare import is_higher_better, refuse_absent_data
from experiment_kit.errors import NothingMeasuredError, UserError, import_library
from experiment_kit.launch import options as launch
from experiment_kit.launch.execute import print_plan, run_missing
from experiment_kit.launch.jobs import default_workers
from experiment_kit.launch.plan import Experiment, load_app, plan_configs, plan_runs, set_option
from experiment_kit.pages.tables import PageTable, print_page_table
from experiment_kit.run_files import hold_lock, is_finite, read_result, try_read, write_atomically

Point = dict[str, str]


def search_grid(
    app: str, grid: str = "", trials: PositiveInt = 20, select: str = "", **options: Any
) -> None:
    """Search GRID for the best point of each method by a validation metric, with Optuna.

    A trial is a point, of the mean of the metric over seeds. With fewer trials than points a
    tree-structured Parzen estimator (TPE) chooses, which depends on the jobs. The same command
    resumes. `<folder>/<app>/<data>-<backbone>/search/<study>/chosen.yaml` has the best point.

    Args:
        app: graph, nlp, sequence, speech or vision
        grid: options, such as "model.filter.K=2,3 model.filter.w1=1,2", or a file of them
        trials: the largest number of points that are tried, for each method
        select: a validation metric, such as val/accuracy; by default the one that chooses the epoch
        options: the overlays, the methods, the seeds, and how runs are started
    """
    chosen, spec = launch.ComparisonOptions(app=app, **options), load_app(app)
    metrics = [spec.monitor, *(m for m in spec.report_train_metrics if m.startswith("val/"))]
    if select and select not in metrics:  # test samples must not choose
        raise UserError(f"--select={select}: a validation metric chooses: {', '.join(metrics)}")
    if not (space := launch.read_grid(app, grid)):
        raise UserError("--grid has no option: write model.filter.K=2,3,5, or a file of a grid")
    experiments = chosen.experiments
    own = launch.find_own_options(experiments, space)
    if without := [method for method in chosen.methods or () if not own[method]]:
        raise UserError(f"--grid has no option of {', '.join(without)}: leave it out of --methods")
    if chosen.dry_run:
        points = max(len(launch.list_points(part)) for part in own.values())
        if points > trials:  # results choose the points
            raise UserError(f"--dry_run needs --trials={points}: fewer points depend on results")
        print_plan(plan_runs(launch.expand_grid(experiments, space), chosen.folder), chosen)
        return
    launch.make_folders(folder=chosen.folder)
    refuse_absent_data(launch.expand_grid(experiments, space))
    failures = 0
    for method in (method for method in own if own[method]):
        seeded = [e for e in experiments if e.method == method]
        failures += Search(seeded, own[method], select or spec.monitor, chosen, trials).run()
    if failures:
        raise UserError(f"{failures} trials have no value: the logs of their runs say why")


@dataclass(frozen=True)
class Search:
    """The search of one method: an experiment a seed, the values to try, and the metric."""

    experiments: Sequence[Experiment]
    space: launch.Grid
    metric: str
    options: launch.LaunchOptions
    trials: int = sys.maxsize

    @cached_property
    def optuna(self) -> Any:
        """Optuna, without its messages."""
        optuna = import_library("optuna", "experiment-kit[search]")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna

    @cached_property
    def path(self) -> Path:
        """The folder of the overlay, named by all that values depend on."""
        runs = [*plan_runs(self.experiments, self.options.folder).values()]
        content = json.dumps([[run.folder.name for run in runs], self.space, self.metric])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return runs[0].task_folder / "search" / f"{self.experiments[0].method}-{digest}"

    @cached_property
    def study(self) -> Any:
        """The study in the journal beside the folder."""
        # absolute: Optuna looks for a lock that a killed process left from another folder
        file = str(self.path.with_suffix(".journal").absolute())
        backend = self.optuna.storages.journal.JournalFileBackend(file)
        return self.optuna.create_study(
            storage=self.optuna.storages.JournalStorage(backend),
            study_name=self.path.name,
            direction="maximize" if is_higher_better(self.metric) else "minimize",
            load_if_exists=True,
        )

    @cached_property
    def points(self) -> list[Point]:
        """All points of the grid."""
        return launch.list_points(self.space)

    def run(self) -> int:
        """Try the points, and write the best one; return how many failed."""
        with hold_lock(self.path.with_suffix(".lock")):
            failures = self.try_points()
            self.show_best()
        return failures

    def try_points(self) -> int:
        """Run the points that have no value, in batches; return how many failed."""
        # a batch is one call of the launcher: threads of study.optimize would share its devices
        trials, tried, failures = min(self.trials, len(self.points)), self.queue_points(), 0
        state = f"{self.path.name}: {len(tried)} of {trials} trials have a value"
        self.options.console.print(state)
        jobs = self.options.jobs or default_workers()
        size = trials if trials == len(self.points) else -(-jobs // len(self.experiments))
        while len(tried) < trials:
            batch = [self.ask_trial(tried) for _ in range(min(size, trials - len(tried)))]
            parts = [plan_runs(self.set_point(t.params), self.options.folder) for t in batch]
            run_missing({e: run for part in parts for e, run in part.items()}, self.options)
            for trial, part in zip(batch, parts, strict=True):
                results = [try_read(read_result, run.folder) for run in part.values()]
                scores = [r["metrics"].get(self.metric, math.nan) for r in results if r]
                if len(scores) == len(part) and all(map(is_finite, scores)):
                    self.study.tell(trial, fmean(scores))
                    continue
                self.fail_trial(trial)
                failures += 1
        return failures

    @property
    def best(self) -> Point:
        """The best point, in the order of the grid."""
        return {key: self.study.best_trial.params[key] for key in self.space}

    def set_point(self, point: Point) -> list[Experiment]:
        """Return the experiments of a point, one a seed."""
        ordered = {key: point[key] for key in self.space}
        return [launch.set_options(e, ordered, self.space) for e in self.experiments]

    def list_trials(self, state: str) -> list[Any]:
        """List the trials in a state, such as COMPLETE."""
        return [trial for trial in self.study.trials if trial.state.name == state]

    def fail_trial(self, trial: Any) -> None:
        """Record a trial that has no value."""
        self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)

    def queue_points(self) -> list[Point]:
        """Queue all points of a small grid, or those that a stop left; return the finished ones."""
        for trial in self.list_trials("RUNNING"):
            self.fail_trial(trial)
        tried = [trial.params for trial in self.list_trials("COMPLETE")]
        known = tried + [t.system_attrs["fixed_params"] for t in self.list_trials("WAITING")]
        failed = [trial.params for trial in self.list_trials("FAIL")]
        for point in self.points if self.trials >= len(self.points) else failed:
            if point.keys() == self.space.keys() and point not in known:
                known.append(point)
                self.study.enqueue_trial(point)
        return tried

    def ask_trial(self, tried: list[Point]) -> Any:
        """Ask for a new point: one that is queued, one that TPE proposes, or one at random."""
        seed, optuna = len(tried), self.optuna  # one seed a trial: it resumes
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        kinds = {k: optuna.distributions.CategoricalDistribution(v) for k, v in self.space.items()}
        while (trial := self.study.ask(kinds)).params in tried:  # TPE repeats itself
            self.fail_trial(trial)
            new = [point for point in self.points if point not in tried]
            self.study.enqueue_trial(random.Random(seed).choice(new))
        tried.append(trial.params)
        return trial

    def show_best(self) -> None:
        """Print the trials, draw them, and write the chosen point as an overlay."""
        console = self.options.console
        finished, overlay = self.list_trials("COMPLETE"), self.path / "chosen.yaml"
        if not finished:
            raise NothingMeasuredError("no trial has a value: the logs of their runs say why")
        rows = [[str(n), *(t.params[key] for key in self.space), f"{t.value:.4g}"]
                for n, t in enumerate(finished, start=1)]  # fmt: skip
        head = ["trial", *(launch.shorten_key(key, self.space) for key in self.space), self.metric]
        print_page_table(PageTable(self.path.name, head, rows), console)
        best = self.set_point(self.best)[0]
        sentence = (
            f"Chosen: {best.name}, {self.metric} {self.study.best_value:.4g}, the best of "
            f"{len(finished)} trials; seeds {', '.join(str(e.seed) for e in self.experiments)}; "
            f"protocol {best.protocol or 'of the data'}."
        )
        values: dict[str, Any] = {}
        config = plan_configs([best])[best]
        for path in (launch.find_path(config, key) for key in self.space):
            set_option(values, path, read_option(config, path))
        write_atomically(overlay, f"# {sentence}\n{yaml.safe_dump(values, sort_keys=False)}")
        own = f'ARGS="-c {shlex.quote(str(overlay))}"'
        console.print(escape(f"{sentence} {overlay} sets it: {own}"))
