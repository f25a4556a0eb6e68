"""Statistics of a table: intervals over seeds, the comparison with the paper, paired tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.results import RANDOM, TableResults, select_setting
from experiment_kit.papers.values import PaperTable, load_table

NOT_COMPARABLE: Literal["not comparable"] = "not comparable"
COMPARABLE_PROTOCOLS = ("published", "test")  # those that score as the papers do
MIN_PAIRS = 6  # with fewer pairs no two-sided exact p-value is below 0.05
ABSENT = "–"
EXPLANATION = (
    "Intervals are Student's of 95 %, of the mean over seeds; two or three seeds make them wide. "
    "The printed value is taken with its printed deviation, or half a unit of its last digit; "
    "within says that the two meet, and no more."
)


@dataclass(frozen=True)
class Comparison:
    """The verdict on a measured cell beside the printed value, and the reason in words.

    A cell is `within` if the printed value plus or minus its tolerance meets Student's interval of
    our mean, else `better` or `worse`, or `differs` where no direction is better.
    """

    kind: Literal["within", "better", "worse", "differs", "not comparable"]
    reason: str


@dataclass(frozen=True)
class FormattedTable:
    """A table beside the results as text."""

    caption: str
    head: list[str]
    body: list[list[str]]


def compare_to_paper(
    results: TableResults, profile: str, protocol: str
) -> dict[tuple[str, str], Comparison]:
    """Compare every measured cell of a setting that has a printed value."""
    paper, decimals = results.paper, results.spec.decimals(results.paper)
    found = {}
    for (row, column), estimate in estimate_cells(results, profile, protocol).items():
        printed = paper.printed_value(row, column)
        if not isinstance(printed, int | float):
            continue
        runs = results.select_runs(row, column, profile, protocol)
        tolerance = find_tolerance(paper, row, column, printed)
        better = paper.columns[column].higher_is_better
        reason = explain_incomparable(runs, profile, protocol)
        found[row, column] = (
            Comparison(NOT_COMPARABLE, reason)
            if reason
            else compare_estimate(estimate, printed, tolerance, better, decimals[column])
        )
    return found


def compare_estimate(
    estimate: MeanDeviation,
    printed: float,
    tolerance: float,
    higher_is_better: bool | None,
    digits: int = 2,
) -> Comparison:
    """Compare an estimate, rounded to the digits that are shown, with a printed value.

    >>> compare_estimate(MeanDeviation.from_values([98.1, 98.4, 98.7]), 98.7, 0.05, True)
    Comparison(kind='within', reason='the interval meets 98.7 ± 0.05')
    """
    is_alone = math.isinf(estimate.half_width)
    half = 0.0 if is_alone else estimate.half_width
    low, high = (round(estimate.mean + sign * half, digits) for sign in (-1, 1))
    equal = ", without width as the seeds are equal," if low == high else ""
    subject = "one seed, which has no interval," if is_alone else f"the interval{equal}"
    shown = f"{printed:g} ± {tolerance:g}"
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return Comparison("within", f"{subject} meets {shown}")
    is_above = low > printed
    side = f"{subject} is {'above' if is_above else 'below'} {shown}"
    if higher_is_better is None:
        return Comparison("differs", side)
    return Comparison("better" if is_above == higher_is_better else "worse", side)


def find_tolerance(paper: PaperTable, row: str, column: str, printed: float) -> float:
    """Return the printed standard deviation of a cell, or half a unit of its last digit."""
    digits = len(paper.columns[column].format_value(printed).partition(".")[2])
    return float(paper.find_row(row).std.get(column) or 0.5 * 10.0**-digits)


def explain_incomparable(runs: pd.DataFrame, profile: str, protocol: str) -> str:
    """Return why the runs of a cell cannot be compared with the paper's; "" if they can."""
    if profile != "paper":
        return f"profile {profile} is not the paper's scale"
    if (runs["weights_source"] == RANDOM).any():
        return "weights are random where the paper's are pretrained"
    if protocol not in COMPARABLE_PROTOCOLS:
        return f"protocol {protocol} holds data out, and the paper's does not"
    return ""


def estimate_cells(
    results: TableResults, profile: str, protocol: str
) -> dict[tuple[str, str], MeanDeviation]:
    """Return mean and deviation of every measured cell, not rounded where runs have its value."""
    runs = select_setting(results.runs, profile, protocol).groupby(["row", "column"])["value"]
    cells = select_setting(results.cells, profile, protocol).to_dict("records")
    rounded = {
        (str(c["row"]), str(c["column"])): MeanDeviation(c["mean"], c["std"], int(c["count"]))
        for c in cells
    }
    exact = {place: MeanDeviation.from_values(group.to_list()) for place, group in runs}
    return {**rounded, **exact}


def format_statistics(results: TableResults, profile: str, protocol: str) -> FormattedTable:
    """Return interval and comparison of each measured cell of a setting."""
    paper, spec = results.paper, results.spec
    labels, decimals = spec.labels(paper), spec.decimals(paper)
    compared = compare_to_paper(results, profile, protocol)
    body = []
    for place, estimate in estimate_cells(results, profile, protocol).items():
        (row, column), found = place, compared.get(place)
        texts = [estimate.format(decimals[column]), estimate.format_interval(decimals[column])]
        verdict = f"{found.kind}: {found.reason}" if found else "no printed value"
        body.append([labels.get(row, row), paper.headings[column], *texts, verdict])
    head = ["method", "column", "ours", "Student's t", "verdict"]
    return FormattedTable("Statistics of each measured cell.", head, body)


def format_pairs(results: TableResults, profile: str, protocol: str) -> FormattedTable | None:
    """Return the differences of the reference row to the others over shared seeds, if any."""
    spec, paper = results.spec, results.paper
    if spec.significance is None:
        return None
    labels, reference = spec.labels(paper), spec.significance.row
    runs = select_setting(results.runs, profile, protocol)
    wide = runs.pivot(index=["column", "seed"], columns="row", values="value")
    if reference not in wide:
        return None
    columns = [c for c in paper.columns if c in wide[reference].dropna().index.get_level_values(0)]
    decimals, body = spec.decimals(paper), []
    for row in (row for row in labels if row != reference and row in wide):
        found = (wide[reference] - wide[row]).dropna().groupby("column").agg(list)
        texts = [_format_pair(found.get(c, []), decimals[c]) for c in columns]
        body += [[labels[row], *texts]] if {*texts} != {ABSENT} else []
    if not body:
        return None
    return FormattedTable(
        f"{labels[reference]} less each row, paired by seed: the mean difference, Student's 95 % "
        "interval of it, and the number of seeds that both have. An interval with 0 tells no "
        "difference; many of them are compared here, and none is corrected for that.",
        ["method", *(paper.headings[column] for column in columns)],
        body,
    )


def _format_pair(differences: Sequence[float], digits: int) -> str:
    if len(differences) < 2:
        return ABSENT
    pair = MeanDeviation.from_values(differences)
    mean, interval = round(pair.mean, digits) + 0.0, pair.format_interval(digits, "+")
    return f"{mean:+.{digits}f} ({interval}; {pair.count})".replace("-", "−")


def format_tests(results: TableResults, profile: str, protocol: str) -> FormattedTable | None:
    """Return the p-values of the reference row against the others; None if there are none."""
    spec, labels = results.spec, results.spec.labels(results.paper)
    if spec.significance is None:
        return None
    reference, printed = spec.significance.row, load_table(spec.significance.table)
    cells = select_setting(results.cells, profile, protocol)
    cells = cells[cells["column"].isin([*spec.columns])]
    wide = cells.pivot(index="column", columns="row", values="mean")
    body = []
    for row in (row for row in cells["row"].unique() if row != reference and reference in wide):
        differences = (wide[reference] - wide[row]).dropna().to_list()
        if test := signed_rank(differences):
            value = printed.printed_value(row, next(iter(printed.columns)))
            texts = [f"{test[0]:.3f}", ABSENT if value is None else f"{value:.3f}", test[1]]
            body.append([labels.get(row, row), str(len(differences)), *texts])
    if not body:
        return None
    return FormattedTable(
        f"Two-sided Wilcoxon signed-rank test of {labels[reference]} against "
        "each row, over the n columns that both have; the one-sided p-value is half of it or, "
        "where the row is the better one, one minus that.",
        ["against", "n", "p", "printed p", "variant"],
        body,
    )


def signed_rank(differences: Sequence[float]) -> tuple[float, str] | None:
    """Return the two-sided p-value and its variant: exact, unless a difference is zero.

    This rule reproduces the AGF paper's Table 13 from its Table 1. Tied differences share their
    rank, and the exact distribution is that of ranks without ties. Zeros are dropped
    (`zero_method="wilcox"`), and the p-value is then the normal approximation. None for fewer than
    six pairs, or no difference.

    >>> signed_rank([0.1, 0.4, -0.2, 0.8, 1.6, 3.2])
    (0.09375, 'exact')
    """
    rounded = [round(d, 6) for d in differences]  # 0.3 - 0.2 ties with 0.2 - 0.1
    zeros = rounded.count(0.0)
    if len(rounded) < MIN_PAIRS or zeros == len(rounded):
        return None
    from scipy.stats import wilcoxon  # takes seconds to import; most tables have too few pairs

    method = "approx" if zeros else "exact"
    result = wilcoxon(rounded, zero_method="wilcox", alternative="two-sided", method=method)
    if zeros:
        method = f"normal approximation without continuity correction, zeros dropped ({zeros})"
    elif len(rounded) > len({abs(d) for d in rounded}):
        method = "exact, of ranks as if none were tied"
    return float(result.pvalue), method
