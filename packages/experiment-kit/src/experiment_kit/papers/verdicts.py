"""Intervals over seeds, and the verdict on a measured cell beside its printed value."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import pandas as pd

from experiment_kit.papers.results import RANDOM, TableResults, select_setting
from experiment_kit.papers.values import PaperTable

Kind = Literal["within", "better", "worse", "differs", "not comparable"]
LEVEL = 0.95
DRAWS = 2000  # of the bootstrap
COMPARABLE_PROTOCOLS = ("published", "test")  # those that score as the papers do
_PERCENT = 100


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

    A cell is `within` if the printed value plus or minus its tolerance meets the interval of the
    mean, else `better` or `worse`, or `differs` where no direction is better. The tolerance is the
    printed standard deviation, or half a unit of the last printed digit.
    """

    kind: Kind
    reason: str


def bootstrap_interval(values: Sequence[float], draws: int = DRAWS) -> Interval:
    r"""Return the mean of the seeds and its percentile interval of 95 %, by the bootstrap.

    .. math:: [q_{0.025}(\bar x^*), q_{0.975}(\bar x^*)], \quad x^* \text{ drawn from } x

    The draws are the same in every call. With n seeds there are few distinct means, so that the
    interval of three seeds is narrower than that of a t-distribution: it never passes the lowest
    or the highest seed. One seed has no interval. Raises ValueError for no value.

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

    None where they share no seed.

    >>> compare_paired_seeds({0: 2.0, 1: 3.0, 2: 9.0}, {0: 1.0, 1: 1.0})
    Interval(mean=1.5, count=2, low=1.0, high=2.0)
    """
    shared = [seed for seed in first if seed in second]
    return bootstrap_interval([first[s] - second[s] for s in shared]) if shared else None


def judge_cell(
    interval: Interval, printed: float, tolerance: float, higher_is_better: bool | None
) -> Verdict:
    """Judge a comparable cell by its interval, or by its one value.

    >>> judge_cell(Interval(98.4, 3, 98.1, 98.7), 98.7, 0.05, True)
    Verdict(kind='within', reason='98.7 ± 0.05 meets 98.1 to 98.7, the 95 % interval of 3 seeds')
    >>> judge_cell(Interval(90.0, 1), 98.7, 0.05, True).kind
    'worse'
    """
    low = interval.mean if interval.low is None else interval.low
    high = interval.mean if interval.high is None else interval.high
    shown = f"{printed:g} ± {tolerance:g}"
    if interval.low is None:
        seeds = f"{interval.mean:.4g}, of one seed, which has no interval"
    else:
        level = f"{_PERCENT * LEVEL:.0f} %"
        seeds = f"{low:.4g} to {high:.4g}, the {level} interval of {interval.count} seeds"
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return Verdict("within", f"{shown} meets {seeds}")
    is_above = interval.mean > printed
    side = f"{seeds}, is {'above' if is_above else 'below'} {shown}"
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
    """Judge every measured cell of one profile and protocol that has a printed value."""
    paper = results.paper
    runs = select_setting(results.runs, profile, protocol)
    verdicts = {}
    for (row, column), group in runs.groupby(["row", "column"], sort=False):
        printed = paper.printed_value(row, column)
        if not isinstance(printed, int | float):
            continue
        if reason := explain_incomparable(group, profile, protocol):
            verdicts[row, column] = Verdict("not comparable", reason)
            continue
        tolerance = find_tolerance(paper, row, column, printed)
        better = paper.columns[column].higher_is_better
        interval = bootstrap_interval(group["value"].to_list())
        verdicts[row, column] = judge_cell(interval, printed, tolerance, better)
    return verdicts
