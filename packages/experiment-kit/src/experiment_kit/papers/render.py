"""A table for the terminal, for Markdown and for the page: one profile and protocol at a time."""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from experiment_kit.pages.tables import Estimate
from experiment_kit.papers.results import RANDOM, TableResults, select_setting
from experiment_kit.papers.spec import TableSpec
from experiment_kit.papers.values import PaperColumn, check_name

MISSING, CITED = "–", "cited"
_IN_CODE = "`"  # ends it
CELL_WIDTH = 17 + 7 + 8 + 3  # of a cell in the terminal, with its border
PROFILES = {
    "paper": "the paper's recipe at its full scale",
    "small": "a reduced scale that takes minutes on two CPU cores, not the paper's recipe",
    "smoke": "seconds of training, which shows that the code runs and measures nothing",
}
PROTOCOLS = {
    "validation": "an epoch is chosen, where one is, on data held out of the training set; the "
    "test set chooses nothing",
    "test": "nothing is held out and the test set itself is scored at every validation, as in the "
    "published code; where the best epoch is reported, the number is an upper bound",
    "published": "splits, scoring, quirks and seeds of the code that the authors released",
}


@dataclass(frozen=True)
class FormattedCell:
    """The numbers of a cell as text, and as an estimate where it is measured.

    `better` says whether a difference beyond the confidence interval is in our favor.
    """

    measured: str
    printed: str
    difference: str
    better: bool | None
    estimate: Estimate | None = None


def describe_cells(results: TableResults) -> str:
    """Explain the numbers of a cell, and name the profiles that cannot be compared."""
    paper, runs = results.paper, results.runs
    points = {paper.columns[key].unit for key in paper.measurable} == {"%"}
    notes = "".join(
        f" Profile {profile} is not comparable with the paper: weights are random."
        for profile in sorted({*runs["profile"][runs["weights_source"] == RANDOM]})
    )
    return (
        "Each cell is our mean ± sample standard deviation (number of seeds), then the value that "
        f"the paper prints and our difference to it{' in points' if points else ''}; "
        f"{MISSING} is not measured.{_describe_cited(results)}{notes}{describe_mix(results)}"
    )


def _describe_cited(results: TableResults) -> str:
    labels = results.spec.labels(results.paper)
    sources = [f"{labels[row]} ({source})" for row, source in results.spec.cited.items()]
    return f" Rows that no library has are {CITED}: {'; '.join(sources)}." if sources else ""


def describe_mix(results: TableResults) -> str:
    """Say which commits and versions a table mixes; "" if it mixes none."""
    text = ""
    for name, title in (("commit", "commits"), ("versions", "versions")):
        found = sorted({value or "unknown" for value in results.runs[name]})
        if len(found) > 1:
            text += f" The runs are of several {title}: {', '.join(found)}."
    return text


def describe_setting(spec: TableSpec, profile: str, protocol: str) -> str:
    """Explain a profile and a protocol in two sentences."""
    arguments = " ".join(spec.protocols.get(protocol, ()))
    other = f"runs with {arguments}" if arguments else "see its overlay"
    return (
        f"Profile {profile}: {PROFILES.get(profile, 'see its overlay')}. "
        f"Protocol {protocol}: {PROTOCOLS.get(protocol, other)}."
    )


def format_commands(results: TableResults, profile: str, protocol: str) -> list[str]:
    """Return the calls of make that measure the cells of a setting, and no others.

    Rows that have the same columns and seeds share one.
    """
    runs = select_setting(results.runs, profile, protocol)
    setting = f"PROFILE={shlex.quote(profile)} PROTOCOL={shlex.quote(protocol)}"
    rows_of: dict[tuple[tuple[str, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for row, of_row in runs.groupby("row", sort=False):
        columns_of: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for column, of_column in of_row.groupby("column", sort=False):
            columns_of[tuple(sorted(of_column["seed"]))].append(str(column))
        for seeds, columns in columns_of.items():
            rows_of[tuple(columns), seeds].append(str(row))
    return [
        f"make table TABLE={results.spec.table} {setting} SEEDS={','.join(map(str, seeds))}"
        f' ARGS="--rows=[{",".join(rows)}] --columns=[{",".join(columns)}]"'
        for (columns, seeds), rows in rows_of.items()
    ]


def format_rows(
    results: TableResults, profile: str, protocol: str
) -> Iterator[tuple[str, dict[str, FormattedCell]]]:
    """Yield the label of every row, and its cells by column."""
    paper, decimals = results.paper, results.spec.decimals(results.paper)
    cells = select_setting(results.cells, profile, protocol).to_dict("records")
    measured = {(cell["row"], cell["column"]): cell for cell in cells}
    for row, label in results.spec.labels(paper).items():
        printed = {key: paper.printed_value(row, key) for key in paper.measurable}
        columns = ((key, measured.get((row, key)), paper.columns[key]) for key in printed)
        is_cited = row in results.spec.cited
        yield (
            label,
            {
                key: _format_cell(
                    cell, printed[key], column, decimals[key], CITED if is_cited else MISSING
                )
                for key, cell, column in columns
            },
        )


def _format_cell(
    cell: Mapping[str, Any] | None,
    printed: float | None,
    column: PaperColumn,
    digits: int,
    absent: str,
) -> FormattedCell:
    text = "" if printed is None else column.format_value(printed)
    if cell is None:
        return FormattedCell(absent if text else MISSING, text, "", None)
    estimate = Estimate(cell["mean"], cell["std"], int(cell["count"]))
    measured = format_estimate(estimate, digits)
    if printed is None:
        return FormattedCell(measured, text, "", None, estimate)
    difference = round(estimate.mean - printed, digits)
    signed = f"{difference:+.{digits}f}".replace("-", "−")
    is_clear = abs(difference) > estimate.half_width and column.higher_is_better is not None
    better = (difference > 0) == column.higher_is_better if is_clear else None
    return FormattedCell(measured, text, signed, better, estimate)


def format_estimate(estimate: Estimate, digits: int) -> str:
    """Return mean, deviation and number of seeds as text.

    >>> format_estimate(Estimate(98.65, 0.38, 2), 2), format_estimate(Estimate(9.0, math.nan, 1), 1)
    ('98.65 ± 0.38 (2)', '9.0 (1)')
    """
    deviation = "" if math.isnan(estimate.std) else f" ± {estimate.std:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{deviation} ({estimate.count})"


def print_table(
    results: TableResults,
    profile: str,
    protocol: str,
    console: Console,
    columns: Sequence[str] | None = None,
) -> None:
    """Print the table of one profile and protocol; by default the columns that have a run.

    Raises a UserError that lists the columns if one is asked for that the table lacks.
    """
    paper, rows = results.paper, list(format_rows(results, profile, protocol))
    shown = paper.measurable
    measured = [c for c in shown if any(_is_measured(cells[c]) for _, cells in rows)]
    kind = f"column of {results.spec.table}"
    chosen = [check_name(c, shown, kind) for c in columns or measured or shown]
    across = max(1, (console.width - max(len(label) for label, _ in rows) - 4) // CELL_WIDTH)
    for start in range(0, len(chosen), across):
        part = chosen[start : start + across]
        table = Table(title=escape(f"{paper.title} · {profile} · {protocol}"))
        table.add_column("method")
        for key in part:
            table.add_column(escape(paper.headings[key]), no_wrap=True)
        for label, cells in rows:
            table.add_row(escape(label), *(_color_cell(cells[key]) for key in part))
        console.print(table)
    absent = [paper.headings[c] for c in shown if c not in chosen]
    note = f" Not shown: {', '.join(absent)}." if absent else ""
    of_profile = TableResults(results.spec, paper, results.runs[results.runs["profile"] == profile])
    console.print(escape(describe_cells(of_profile) + note), style="dim", highlight=False)


def _is_measured(cell: FormattedCell) -> bool:
    return cell.measured not in (MISSING, CITED)


def _color_cell(cell: FormattedCell) -> Text:
    weight = "bold" if _is_measured(cell) else "dim"
    color = {True: "green", False: "red", None: "default"}[cell.better]
    printed, difference = f" {cell.printed:>6}", f" {cell.difference:>7}"
    return Text.assemble((f"{cell.measured:>17}", weight), (printed, "dim"), (difference, color))


def escape_markdown(text: str, characters: str = "|`[]") -> str:
    """Escape what a name must not bring into a page: HTML, cells, code, links, lines.

    >>> escape_markdown("a<b>|c\\nd")
    'a&lt;b&gt;&#124;c d'
    """
    codes = {ord(c): f"&#{ord(c)};" for c in characters} | {ord("<"): "&lt;", ord(">"): "&gt;"}
    return " ".join(text.split()).translate(codes)
