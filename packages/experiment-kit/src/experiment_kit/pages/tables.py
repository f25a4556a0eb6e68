"""Tables of a page: cells that sort by their value, and the best value of a column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, Self, TypeVar

CONFIDENCE = 0.95
Key = TypeVar("Key")


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the `value` that it sorts by, and what stands beside it.

    `note` is a second line, `difference` ends it, and `verdict` says whether that is `better` or
    `worse`; `is_best` makes the text bold; `href` makes it a link, and `id` the aim of one. `links`
    are more lines, texts with their addresses.
    """

    text: str
    value: float | None = None
    note: str = ""
    difference: str = ""
    verdict: Literal["better", "worse", ""] = ""
    is_best: bool = False
    href: str = ""
    id: str = ""
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class PageTable:
    """A table of a page; `label` names it for screen readers, `note` stands below it."""

    label: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation and number of the values of several seeds."""

    mean: float
    std: float
    count: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Self:
        """Compute the estimate of at least one value; one alone has no deviation, which is NaN."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else math.nan, len(values))

    @property
    def half_width(self) -> float:
        r"""Compute half of Student's 95 % confidence interval of the mean, infinite for one value.

        .. math:: t_{0.975, n-1} s / \sqrt n

        >>> round(Estimate(70.0, 2.0, 3).half_width, 2)
        4.97
        """
        if self.count < 2 or math.isnan(self.std):
            return math.inf
        from scipy.special import stdtrit  # takes a second to import

        quantile = float(stdtrit(self.count - 1, (1 + CONFIDENCE) / 2))
        return quantile * self.std / math.sqrt(self.count)


def find_best(estimates: Mapping[Key, Estimate], higher_is_better: bool | None) -> Key | None:
    """Return the key of the best mean whose confidence interval overlaps no other one.

    None where there is none, where one seed gives no interval, and where no value is better.

    >>> good, bad = Estimate(70.0, 0.1, 3), Estimate(60.0, 0.1, 3)
    >>> find_best({"a": bad, "b": good}, True), find_best({"a": bad, "b": bad}, True)
    ('b', None)
    """
    if higher_is_better is None or len(estimates) < 2:
        return None
    sign = 1 if higher_is_better else -1
    best, *others = sorted(estimates, key=lambda key: -sign * estimates[key].mean)
    lowest = sign * estimates[best].mean - estimates[best].half_width
    highest = max(sign * e.mean + e.half_width for e in (estimates[key] for key in others))
    return best if lowest > highest else None
