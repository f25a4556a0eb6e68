"""Tables of the terminal and of static pages, and the pages, each a file that needs no network.

A page is a Jinja2 template that extends `page.html`; `macros.html` has tables, figures and lists.
"""

import base64
import math
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self, TypeVar
from urllib.parse import quote

import pandas as pd
from attention_core.plots import render_figure
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from experiment_kit.run_files import write_atomically

CONFIDENCE = 0.95
MISSING = "–"
Key = TypeVar("Key")


@dataclass(frozen=True)
class PageTable:
    """A table of a page; `label` names it for screen readers, `note` stands below it.

    A cell is text, or Markup such as a link; `best` has the rows and columns of bold ones.
    """

    label: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    best: Collection[tuple[int, int]] = ()


@dataclass(frozen=True)
class MeanDeviation:
    """Mean, sample standard deviation and number of the values of several seeds."""

    mean: float
    std: float
    count: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Self:
        """Summarize at least one value; the deviation of one alone is NaN."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else math.nan, len(values))

    @property
    def half_width(self) -> float:
        r"""Compute half of Student's 95 % confidence interval of the mean, infinite for one value.

        .. math:: t_{0.975, n-1} s / \sqrt n

        >>> round(MeanDeviation(70.0, 2.0, 3).half_width, 2)
        4.97
        """
        if self.count < 2 or math.isnan(self.std):
            return math.inf
        from scipy.special import stdtrit  # takes a second to import

        quantile = float(stdtrit(self.count - 1, (1 + CONFIDENCE) / 2))
        return quantile * self.std / math.sqrt(self.count)

    def format(self, digits: int) -> str:
        """Return mean, deviation and number of seeds as text."""
        deviation = "" if math.isnan(self.std) else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{deviation} ({self.count})"

    def format_interval(self, digits: int, sign: str = "") -> str:
        """Return Student's 95 % interval of the mean of several values as text."""
        low, high = (round(self.mean + s * self.half_width, digits) + 0.0 for s in (-1, 1))
        return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def find_best(estimates: Mapping[Key, MeanDeviation], higher_is_better: bool | None) -> Key | None:
    """Return the key of the best mean if its confidence interval overlaps no other one."""
    if higher_is_better is None or len(estimates) < 2:
        return None
    sign = 1 if higher_is_better else -1
    best, *others = sorted(estimates, key=lambda key: -sign * estimates[key].mean)
    lowest = sign * estimates[best].mean - estimates[best].half_width
    highest = max(sign * e.mean + e.half_width for e in (estimates[key] for key in others))
    return best if lowest > highest else None


def print_page_table(table: PageTable, console: Console) -> None:
    """Print a table below its label, in several parts where the terminal is narrow."""
    frame = pd.DataFrame(table.rows, columns=table.head)
    frame = frame.set_index(table.head[0]).rename_axis(index=None, columns=table.head[0])
    text = frame.to_string(line_width=console.width)
    console.print(f"{table.label}\n{text}", markup=False, highlight=False, soft_wrap=True)


def write_page(path: Path, template: str, **context: Any) -> None:
    """Render a template of this package into one file; `command` is the one that is running."""
    environment = Environment(
        loader=PackageLoader("experiment_kit.pages"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    command = shlex.join(["allpass", *sys.argv[1:]])
    write_atomically(path, environment.get_template(template).render(command=command, **context))


def embed_figure(draw: Callable[[str], Any], label: str) -> Markup:
    """Draw a figure in both themes; return an image for each, with a name for screen readers."""
    files = [render_figure(partial(draw, theme), theme=theme) for theme in ("light", "dark")]
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(f).decode()}" for f in files)
    return Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img src="{}" alt="{}"></picture>'
    ).format(dark, light, label)


def link_file(file: Path, page: Path) -> str:
    """Return the address of a file relative to the page that names it."""
    return quote(Path(os.path.relpath(file, page.parent)).as_posix())
