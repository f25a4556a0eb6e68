"""A cell of a table under a profile and a protocol: what is printed, our mean, the verdict."""

import math
from typing import NamedTuple

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.values import PaperTable

NOT_COMPARABLE = "not comparable"
COMPARABLE_PROTOCOLS = ("published", "test")  # those that score as the papers do


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
    absent: str = MISSING,
) -> CellResult:
    """Describe a cell; `incomparable` says why it is not compared with the printed value."""
    column, printed = paper.columns[key], paper.printed_value(row, key)
    text = "" if printed is None else column.format_value(printed)
    ours = estimate.format(digits) if estimate else absent if text else MISSING
    cell = CellResult(row, key, digits, ours, text, estimate)
    if estimate is None or printed is None:
        return cell
    difference, higher = (
        round(round(estimate.mean, digits) - printed, digits),
        column.higher_is_better,
    )
    signed = f"{difference:+.{digits}f}".replace("-", "−")
    is_clear = abs(difference) > estimate.half_width and higher is not None
    is_better = (difference > 0) == higher if is_clear else None
    half_digit = 0.5 * 10.0 ** -len(text.partition(".")[2])
    tolerance = float(paper.find_row(row).std.get(key) or half_digit)
    compared = compare_estimate(estimate, printed, tolerance, higher, digits)
    kind, reason = (NOT_COMPARABLE, incomparable) if incomparable else compared
    return cell._replace(difference=signed, is_better=is_better, kind=kind, reason=reason)


def compare_estimate(
    estimate: MeanDeviation,
    printed: float,
    tolerance: float,
    higher_is_better: bool | None,
    digits: int = 2,
) -> tuple[str, str]:
    """Compare an estimate, rounded to the digits that are shown, with a printed value.

    It is `within` if the printed value plus or minus its tolerance meets Student's interval of the
    mean, else `better` or `worse`, or `differs` where no direction is better. The reason follows.

    >>> compare_estimate(MeanDeviation.from_values([98.1, 98.4, 98.7]), 98.7, 0.05, True)
    ('within', 'the interval meets 98.7 ± 0.05')
    """
    is_alone = math.isinf(estimate.half_width)
    half = 0.0 if is_alone else estimate.half_width
    low, high = (round(estimate.mean + sign * half, digits) for sign in (-1, 1))
    equal = ", without width as the seeds are equal," if low == high else ""
    subject = "one seed, which has no interval," if is_alone else f"the interval{equal}"
    shown = f"{printed:g} ± {tolerance:g}"
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return "within", f"{subject} meets {shown}"
    is_above = low > printed
    side = f"{subject} is {'above' if is_above else 'below'} {shown}"
    if higher_is_better is None:
        return "differs", side
    return "better" if is_above == higher_is_better else "worse", side


def explain_incomparable(profile: str, protocol: str, is_random: bool) -> str:
    """Return why a measurement cannot be compared with the paper's; "" if it can."""
    if profile != "paper":
        return f"profile {profile} is not the paper's scale"
    if is_random:
        return "weights are random where the paper's are pretrained"
    if protocol not in COMPARABLE_PROTOCOLS:
        return f"protocol {protocol} holds data out, and the paper's does not"
    return ""
