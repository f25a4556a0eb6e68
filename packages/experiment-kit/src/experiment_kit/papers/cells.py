"""A cell of a table under a profile and a protocol: what is printed, our mean, the verdict."""

import math
from typing import NamedTuple

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.values import PaperTable, count_tests

NOT_COMPARABLE = "not comparable"
MIN_SEEDS = 3  # for a verdict


class CellResult(NamedTuple):
    """A cell as text, and as an estimate where it is measured.

    `is_better` says whether a difference beyond the confidence interval is in our favor; `kind` and
    `reason` are the verdict where there is a printed value as well.
    """

    row: str
    key: str
    digits: int
    ours: str
    printed: str
    estimate: MeanDeviation | None
    difference: str = ""
    is_better: bool | None = None
    kind: str = ""
    reason: str = ""


def describe_cell(
    paper: PaperTable,
    row: str,
    key: str,
    digits: int,
    estimate: MeanDeviation | None = None,
    incomparable: str = "",
    data: str = "",
    absent: str = MISSING,
) -> CellResult:
    """Describe a cell of a data set; `incomparable` says why the printed value is no comparison."""
    column, printed = paper.columns[key], paper.printed_value(row, key)
    text = "" if printed is None else column.format_value(printed)
    ours = estimate.format(digits) if estimate else absent if text else MISSING
    cell = CellResult(row, key, digits, ours, text, estimate)
    if estimate is None or printed is None:
        return cell
    difference = round(round(estimate.mean, digits) - printed, digits)
    signed = f"{difference:+.{digits}f}".replace("-", "−")
    higher = column.higher_is_better
    is_clear = abs(difference) > estimate.half_width and higher is not None
    is_better = (difference > 0) == higher if is_clear else None
    incomparable = incomparable or explain_few_seeds(estimate, digits)
    if incomparable:
        kind, reason = NOT_COMPARABLE, incomparable
    else:
        tolerance, origin = find_tolerance(paper, row, key, printed, data)
        kind, side = compare_estimate(estimate, printed, tolerance, higher, digits)
        reason = f"the interval {side} {printed:g} ± {tolerance:.2g}, {origin}"
    return cell._replace(difference=signed, is_better=is_better, kind=kind, reason=reason)


def find_tolerance(
    paper: PaperTable, row: str, key: str, printed: float, data: str
) -> tuple[float, str]:
    """Return how far a printed value may be off, and what that is.

    It is the printed deviation; of an accuracy without one the error of sampling its tests, which
    the greatest of many evaluations of one seed has as well; else half a unit of the last digit.
    """
    if deviation := paper.find_row(row).std.get(key):
        return float(deviation), "its printed deviation"
    column, tests = paper.columns[key], count_tests(data)
    if tests and column.unit == "%" and "accuracy" in column.metric:
        error = math.sqrt(max(printed * (100 - printed), 0) / tests)
        return error, f"the error of sampling {tests:,} tests, as it is printed of one seed"
    digits = len(column.format_value(printed).partition(".")[2])
    return 0.5 * 10.0**-digits, "half a unit of its last digit"


def compare_estimate(
    estimate: MeanDeviation,
    printed: float,
    tolerance: float,
    higher_is_better: bool | None,
    digits: int = 2,
) -> tuple[str, str]:
    """Compare an estimate, rounded to the digits that are shown, with a printed value.

    It is `within` if the printed value plus or minus its tolerance meets Student's interval of the
    mean, else `better` or `worse`, or `differs` where no direction is better. The side follows.

    >>> compare_estimate(MeanDeviation.from_values([98.1, 98.4, 98.7]), 98.7, 0.05, True)
    ('within', 'meets')
    """
    low, high = (round(estimate.mean + s * estimate.half_width, digits) for s in (-1, 1))
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return "within", "meets"
    is_above = low > printed
    side = "is above" if is_above else "is below"
    if higher_is_better is None:
        return "differs", side
    return "better" if is_above == higher_is_better else "worse", side


def explain_few_seeds(estimate: MeanDeviation, digits: int) -> str:
    """Return why the seeds of an estimate give no interval to compare; "" if they give one."""
    if estimate.count < MIN_SEEDS:
        seeds = "one seed has" if estimate.count == 1 else f"{estimate.count} seeds have"
        return f"{seeds} no interval worth a verdict"
    is_flat = round(estimate.half_width, digits) == 0
    return "the interval has no width, as the seeds are equal" if is_flat else ""
