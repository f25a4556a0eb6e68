"""Optuna studies over the points of a grid, in a journal file that outlives a killed process.

A point is tried once. The sampler of a trial depends on the number of points before it alone, so
that an interrupted study goes on as if it had not been. Nothing is pruned.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError, shorten_text
from experiment_kit.launch.grid import Grid
from experiment_kit.launch.lease import hold_lease
from experiment_kit.run import hold_lock, make_folder
from experiment_kit.run_files import refuse_special_file

SEED = 0
MAX_REPEATS = 20  # proposals of points that were tried, before one is drawn at random
REMEDY = "move it away to begin anew; finished runs are not trained again"
Point = frozenset[tuple[str, str]]  # options and their values


@dataclass(frozen=True)
class GridStudy:
    """An Optuna study of `trials` points of a grid, all of them where there are no more."""

    study: Any
    space: Grid
    trials: int
    check_owner: Callable[[], None] = lambda: None  # raises UserError once it is another's

    def requeue_unfinished(self) -> None:
        """Queue the points without a value once more: a process was killed, or a run failed."""
        state = import_optuna().trial.TrialState
        known = {read_point(t) for t in self.list_finished()}
        queued = self.study.get_trials(states=[state.WAITING])
        known |= {frozenset(t.system_attrs["fixed_params"].items()) for t in queued}
        for trial in self.study.get_trials(states=[state.RUNNING, state.FAIL]):
            if trial.state == state.RUNNING:
                self.tell_value(trial.number, None)
            # a process that is killed while it writes a trial leaves a part of a point
            if len(trial.params) == len(self.space) and read_point(trial) not in known:
                known.add(read_point(trial))
                self.study.enqueue_trial(trial.params)

    def ask_batch(self, tried: set[Point], size: int) -> list[Any]:
        """Return the next trials, up to `size`, and add their points to those that are tried."""
        batch: list[Any] = []
        while len(batch) < size and len(tried) < self.trials:
            batch.append(self._ask_new(tried))
            tried.add(read_point(batch[-1]))
        return batch

    def tell_value(self, trial: Any, value: float | None) -> None:
        """Record the value of a trial, or None for a failure."""
        self.check_owner()
        optuna = import_optuna()
        # the sampler of a grid would end Optuna's own loop here, which is not in use
        self.study.sampler = optuna.samplers.RandomSampler(SEED)
        state = optuna.trial.TrialState.FAIL if value is None else None
        self.study.tell(trial, value, state=state)

    def _ask_new(self, tried: set[Point]) -> Any:
        self.check_owner()
        optuna, seed = import_optuna(), SEED + len(tried)
        kinds = {k: optuna.distributions.CategoricalDistribution(v) for k, v in self.space.items()}
        sampler = _make_sampler(self.space, self.trials, seed)
        for _ in range(MAX_REPEATS):
            self.study.sampler = sampler
            trial = self.study.ask(kinds)
            if read_point(trial) not in tried:
                return trial
            self.tell_value(trial, None)
        draw = random.Random(seed)
        while True:
            point = {key: draw.choice(values) for key, values in self.space.items()}
            if frozenset(point.items()) not in tried:
                self.study.enqueue_trial(point)
                return self.study.ask(kinds)

    def list_finished(self) -> list[Any]:
        """Return the trials that have a value, in their order."""
        return self.study.get_trials(states=[import_optuna().trial.TrialState.COMPLETE])

    def find_best(self) -> tuple[Any, int]:
        """Return the first trial with the best value, and how many trials have that value.

        Raises UserError where no trial has a value.
        """
        finished = self.list_finished()
        if not finished:
            raise UserError("no trial of the search has a value: the logs of its runs say why")
        choose = max if self.study.direction.name == "MAXIMIZE" else min
        best = choose(finished, key=lambda trial: trial.value)
        return best, sum(trial.value == best.value for trial in finished)

    def measure_importances(self) -> dict[str, float]:
        """Return the share of each option in how the best trials differ from all of them.

        Empty where that is not defined: one option or one value for all.

        Source: https://arxiv.org/abs/2304.10255 (PED-ANOVA)
        """
        varied = [key for key, values in self.space.items() if len(values) > 1]
        if len(varied) < 2 or len({trial.value for trial in self.list_finished()}) < 2:
            return {}
        with _hide_experimental_warnings() as optuna:
            measure = optuna.importance.get_param_importances
            found = measure(self.study, params=varied, normalize=False)
        total = math.fsum(found.values())
        return {key: value / total for key, value in found.items()} if total > 0 else {}


@contextmanager
def hold_study(path: Path, is_shared: bool) -> Iterator[Callable[[], None]]:
    """Hold the study of a folder against other launchers, of other machines where it is shared.

    The function that is yielded raises UserError once the study may be another's.
    """
    with ExitStack() as stack:
        stack.enter_context(hold_lock(path.with_suffix(".lock")))
        lease = stack.enter_context(hold_lease(path)) if is_shared else None

        def check_owner() -> None:
            if lease and lease.is_lost:
                raise UserError(
                    f"another launcher may have {path} now, since this one could not write there:"
                    " the same command goes on after it"
                )

        yield check_owner


def open_study(
    path: Path,
    space: Grid,
    trials: int,
    higher_is_better: bool,
    check_owner: Callable[[], None] = lambda: None,
) -> GridStudy:
    """Open the study of a journal, or begin it; the caller holds a lock against other processes.

    Raises UserError, with the remedy, for a journal that is damaged, and where Optuna is missing.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    refuse_special_file(path, REMEDY)
    make_folder(path.parent)
    _drop_unfinished_line(path)
    # absolute: Optuna looks for a lock that a killed process left from another folder
    file, journal = str(path.absolute()), optuna.storages.journal
    direction = "maximize" if higher_is_better else "minimize"
    try:
        backend = journal.JournalFileBackend(file, journal.JournalFileOpenLock(file))
        storage = optuna.storages.JournalStorage(backend)
        pruner = optuna.pruners.NopPruner()
        options = {"study_name": path.stem, "direction": direction, "pruner": pruner}
        study = optuna.create_study(storage=storage, load_if_exists=True, **options)
        keys = {key for trial in study.get_trials() for key in trial.params}
    except OSError:  # a full disk, no permission
        raise
    except Exception as error:  # a damaged journal can raise anything
        reason = shorten_text(f"{type(error).__name__}: {error}", 80)
        raise UserError(f"{path} is damaged ({reason}): {REMEDY}") from error
    if study.direction.name.lower() != direction or not keys <= space.keys():
        raise UserError(f"{path} is the study of another search: {REMEDY}")
    return GridStudy(study, space, min(trials, count_points(space)), check_owner)


def import_optuna() -> Any:
    """Return the module; raises UserError, with the remedy, where it is not installed."""
    try:
        import optuna  # takes a second
    except ImportError as error:
        raise UserError("a search needs Optuna: pip install 'allpass-kit[search]'") from error
    return optuna


def _drop_unfinished_line(path: Path) -> None:
    """Cut what a killed process began to write: the next line would join it."""
    if path.is_file():
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)


def _make_sampler(space: Grid, trials: int, seed: int) -> Any:
    with _hide_experimental_warnings() as optuna:
        if covers_grid(space, trials):
            return optuna.samplers.GridSampler(space, seed=SEED)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


@contextmanager
def _hide_experimental_warnings() -> Iterator[Any]:
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield optuna


def covers_grid(space: Mapping[str, Sequence[str]], trials: int) -> bool:
    """Return True if there is a trial for every point.

    >>> covers_grid({"a": ["1", "2"], "b": ["1", "2", "3"]}, trials=6)
    True
    """
    return trials >= count_points(space)


def count_points(space: Mapping[str, Sequence[str]]) -> int:
    """Count the points of a grid."""
    return math.prod(len(values) for values in space.values())


def read_point(trial: Any) -> Point:
    """Return the options and values of a trial."""
    return frozenset(trial.params.items())
