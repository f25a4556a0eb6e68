"""Intervals over seeds, and the verdict on a measured cell beside its printed value."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import pandas as pd

from experiment_kit.pages.tables import Estimate
from experiment_kit.papers.results import RANDOM, TableResults, select_setting
from experiment_kit.papers.values import PaperTable

Kind = Literal["within", "better", "worse", "differs", "not comparable"]
LEVEL = 0.95
DRAWS = 2000  # of the bootstrap
COMPARABLE_PROTOCOLS = ("published", "test")  # those that score as the papers do


@dataclass(frozen=True)
class Interval:
    """The mean of the seeds of a cell, and its 95 % interval; none for one seed."""

    mean: float
    count: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a cell: `kind`, and the reason in words.

    A cell is `within` if the printed value plus or minus its tolerance meets Student's interval of
    our mean, which few seeds make wide, else `better` or `worse`, or `differs` where no direction
    is better. The tolerance is the printed standard deviation, or half a unit of the last printed
    digit.
    """

    kind: Kind
    reason: str


def student_interval(estimate: Estimate) -> Interval:
    """Return the 95 % interval of a mean by Student's t; none for one seed.

    >>> round(student_interval(Estimate.from_values([1.0, 2.0, 3.0])).low, 3)  # 2 - 4.303 / sqrt(3)
    -0.484
    >>> student_interval(Estimate.from_values([2.5]))
    Interval(mean=2.5, count=1, low=None, high=None)
    """
    mean, half = estimate.mean, estimate.half_width
    if math.isinf(half):
        return Interval(mean, estimate.count)
    return Interval(mean, estimate.count, mean - half, mean + half)


def round_interval(interval: Interval, digits: int) -> Interval:
    """Round the mean and the ends of an interval."""
    if interval.low is None or interval.high is None:
        return replace(interval, mean=round(interval.mean, digits))
    mean, low, high = (round(x, digits) for x in (interval.mean, interval.low, interval.high))
    return Interval(mean, interval.count, low, high)


def bootstrap_interval(values: Sequence[float], draws: int = DRAWS) -> Interval:
    r"""Return the mean of the seeds and its percentile interval of 95 %, by the bootstrap.

    .. math:: [q_{0.025}(\bar x^*), q_{0.975}(\bar x^*)], \quad x^* \text{ drawn from } x

    The draws are the same in every call. The interval never passes the lowest or the highest seed:
    of two and of three seeds it is their range, which holds the mean of a symmetric distribution
    in 50 and in 75 of 100 cases. Verdicts take Student's interval. One seed has no interval.
    Raises ValueError for no value.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3

    >>> bootstrap_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, count=3, low=1.0, high=3.0)
    >>> bootstrap_interval([2.5])
    Interval(mean=2.5, count=1, low=None, high=None)
    """
    if not values:
        raise ValueError("bootstrap_interval needs at least one value")
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, count)
    generator = random.Random(0)
    means = sorted(fmean(generator.choices(values, k=count)) for _ in range(draws))
    tail = round((1 - LEVEL) / 2 * draws)
    return Interval(mean, count, means[tail], means[-1 - tail])


def compare_paired_seeds(
    first: Mapping[int, float], second: Mapping[int, float]
) -> Interval | None:
    """Return the mean difference, first less second, over the seeds of both, with its interval.

    The interval is that of the paired t-test. None where they share no seed.

    >>> compare_paired_seeds({0: 2.0, 1: 3.0, 2: 9.0}, {0: 1.0, 1: 2.0})
    Interval(mean=1.0, count=2, low=1.0, high=1.0)
    """
    shared = [seed for seed in first if seed in second]
    if not shared:
        return None
    return student_interval(Estimate.from_values([first[s] - second[s] for s in shared]))


def judge_cell(
    interval: Interval, printed: float, tolerance: float, higher_is_better: bool | None
) -> Verdict:
    """Judge a comparable cell by its interval, or by its one value.

    >>> judge_cell(Interval(98.4, 3, 98.1, 98.7), 98.7, 0.05, True)
    Verdict(kind='within', reason='the interval meets 98.7 ± 0.05')
    >>> judge_cell(Interval(90.0, 1), 98.7, 0.05, True)
    Verdict(kind='worse', reason='one seed, which has no interval, is below 98.7 ± 0.05')
    """
    low = interval.mean if interval.low is None else interval.low
    high = interval.mean if interval.high is None else interval.high
    shown = f"{printed:g} ± {tolerance:g}"
    seeds = "the interval"
    if interval.low is None:
        seeds = "one seed, which has no interval,"
    elif low == high:
        seeds = "the interval, without width as the seeds are equal,"
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return Verdict("within", f"{seeds} meets {shown}")
    is_above = interval.mean > printed
    side = f"{seeds} is {'above' if is_above else 'below'} {shown}"
    if higher_is_better is None:
        return Verdict("differs", side)
    return Verdict("better" if is_above == higher_is_better else "worse", side)


def find_tolerance(paper: PaperTable, row: str, column: str, printed: float) -> float:
    """Return the printed standard deviation of a cell, or half a unit of its last digit."""
    found = next((r for r in paper.rows if r.key == row), None)
    if found is not None and found.std.get(column):
        return float(found.std[column])
    text = paper.columns[column].format_value(printed)
    digits = len(text.partition(".")[2])
    return 0.5 * 10.0**-digits


def explain_incomparable(runs: pd.DataFrame, profile: str, protocol: str) -> str:
    """Return why the runs of a cell cannot be compared with the paper's; "" if they can."""
    if profile != "paper":
        return f"profile {profile} is not the paper's scale"
    if (runs["weights_source"] == RANDOM).any():
        return "weights are random where the paper's are pretrained"
    if protocol not in COMPARABLE_PROTOCOLS:
        return f"protocol {protocol} holds data out, and the paper's does not"
    return ""


def judge_cells(
    results: TableResults, profile: str, protocol: str
) -> dict[tuple[str, str], Verdict]:
    """Judge every measured cell of one profile and protocol that has a printed value.

    Intervals are compared as they are shown, rounded.
    """
    paper, decimals = results.paper, results.spec.decimals(results.paper)
    verdicts = {}
    for (row, column), estimate in estimate_cells(results, profile, protocol).items():
        printed = paper.printed_value(row, column)
        if not isinstance(printed, int | float):
            continue
        runs = results.select_runs(row, column, profile, protocol)
        if reason := explain_incomparable(runs, profile, protocol):
            verdicts[row, column] = Verdict("not comparable", reason)
            continue
        tolerance = find_tolerance(paper, row, column, printed)
        better = paper.columns[column].higher_is_better
        interval = round_interval(student_interval(estimate), decimals[column])
        verdicts[row, column] = judge_cell(interval, printed, tolerance, better)
    return verdicts


def estimate_cells(
    results: TableResults, profile: str, protocol: str
) -> dict[tuple[str, str], Estimate]:
    """Return mean and deviation of every measured cell, not rounded where runs have its value."""
    found = {}
    for cell in select_setting(results.cells, profile, protocol).to_dict("records"):
        place = str(cell["row"]), str(cell["column"])
        values = list_values(results, *place, profile, protocol)
        rounded = Estimate(cell["mean"], cell["std"], int(cell["count"]))
        found[place] = Estimate.from_values(values) if values else rounded
    return found


def list_values(
    results: TableResults, row: str, column: str, profile: str, protocol: str
) -> list[float]:
    """Return the values of the seeds of a cell; none where it is computed from other cells."""
    runs = select_setting(results.runs, profile, protocol)
    return runs[(runs["row"] == row) & (runs["column"] == column)]["value"].to_list()
