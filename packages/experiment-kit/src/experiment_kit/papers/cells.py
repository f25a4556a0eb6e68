"""A cell of a table under a profile and a protocol: what is printed, our mean, the verdict."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.values import PaperTable

NOT_COMPARABLE: Literal["not comparable"] = "not comparable"
COMPARABLE_PROTOCOLS = ("published", "test")  # those that score as the papers do


@dataclass(frozen=True)
class Comparison:
    """The verdict on a measured cell beside the printed value, and the reason in words.

    A cell is `within` if the printed value plus or minus its tolerance meets Student's interval of
    our mean, else `better` or `worse`, or `differs` where no direction is better.
    """

    kind: Literal["within", "better", "worse", "differs", "not comparable"]
    reason: str


@dataclass(frozen=True)
class CellResult:
    """A cell under a profile and a protocol; `estimate` is None where it is not measured.

    `incomparable` says why it is not compared with the paper, if so, and `absent` stands for a
    number that we do not have.
    """

    paper: PaperTable
    row: str
    key: str
    digits: int
    estimate: MeanDeviation | None = None
    incomparable: str = ""
    absent: str = MISSING

    @cached_property
    def printed_value(self) -> float | None:
        """The printed value."""
        return self.paper.printed_value(self.row, self.key)

    @property
    def printed_text(self) -> str:
        """The printed value with its printed digits."""
        column = self.paper.columns[self.key]
        return "" if self.printed_value is None else column.format_value(self.printed_value)

    @property
    def ours(self) -> str:
        """Our mean, deviation and number of seeds as text."""
        return self.estimate.format(self.digits) if self.estimate else self.absent

    @cached_property
    def difference(self) -> float | None:
        """Our mean less the printed value; None without one of the two."""
        if self.estimate is None or self.printed_value is None:
            return None
        return round(round(self.estimate.mean, self.digits) - self.printed_value, self.digits)

    @property
    def difference_text(self) -> str:
        """The difference with its sign."""
        found = self.difference
        return "" if found is None else f"{found:+.{self.digits}f}".replace("-", "−")

    @property
    def is_better(self) -> bool | None:
        """True for a difference beyond the confidence interval in our favor; None within it."""
        higher = self.paper.columns[self.key].higher_is_better
        if self.difference is None or self.estimate is None or higher is None:
            return None
        is_clear = abs(self.difference) > self.estimate.half_width
        return (self.difference > 0) == higher if is_clear else None

    @property
    def verdict(self) -> Comparison | None:
        """The comparison with the paper; None without one of the two numbers."""
        if self.estimate is None or self.printed_value is None:
            return None
        if self.incomparable:
            return Comparison(NOT_COMPARABLE, self.incomparable)
        last_digit = 10.0 ** -len(self.printed_text.partition(".")[2])
        tolerance = float(self.paper.find_row(self.row).std.get(self.key) or last_digit / 2)
        higher = self.paper.columns[self.key].higher_is_better
        return compare_estimate(self.estimate, self.printed_value, tolerance, higher, self.digits)


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


def explain_incomparable(profile: str, protocol: str, is_random: bool) -> str:
    """Return why a measurement cannot be compared with the paper's; "" if it can."""
    if profile != "paper":
        return f"profile {profile} is not the paper's scale"
    if is_random:
        return "weights are random where the paper's are pretrained"
    if protocol not in COMPARABLE_PROTOCOLS:
        return f"protocol {protocol} holds data out, and the paper's does not"
    return ""
