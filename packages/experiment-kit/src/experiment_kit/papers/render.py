"""A table for the terminal, and its page in Markdown: the numbers, their statistics, their runs."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers import provenance
from experiment_kit.papers.results import RANDOM, TableResults, select_setting
from experiment_kit.papers.spec import TableSpec
from experiment_kit.papers.values import PaperColumn, check_name
from experiment_kit.papers.verdicts import (
    EXPLANATION,
    format_pairs,
    format_statistics,
    format_tests,
)

MISSING, CITED = "–", "cited"
_IN_CODE = "`"  # ends it
CELL_WIDTH = 17 + 7 + 8 + 3  # a cell in the terminal, with its border
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
_RUNS = (
    "One line a seed. `python -m experiment_kit config --run=<hash>` prints the config of a run, "
    "which alone reruns the experiment; its line in [{runs}]({runs}) also has the result with its "
    "digest, the environment of each start, and training curves. `git show <commit>` has the code; "
    "a commit that ends in -modified had changes that were not committed."
)


@dataclass(frozen=True)
class FormattedCell:
    """The numbers of a cell as text, and as an estimate where it is measured.

    `better` says whether a difference beyond the confidence interval is in our favor.
    """

    measured: str
    printed: str
    difference: str
    better: bool | None
    estimate: MeanDeviation | None = None


def describe_cells(results: TableResults) -> str:
    """Explain the numbers of a cell, and name the profiles that cannot be compared."""
    paper, runs = results.paper, results.runs
    points = {paper.columns[key].unit for key in paper.measurable} == {"%"}
    text = (
        "Each cell is our mean ± sample standard deviation (number of seeds), then the value that "
        f"the paper prints and our difference to it{' in points' if points else ''}; "
        f"{MISSING} is not measured."
    )
    labels = results.spec.labels(paper)
    cited = [f"{labels[row]} ({source})" for row, source in results.spec.cited.items()]
    text += f" Rows that no library has are {CITED}: {'; '.join(cited)}." if cited else ""
    for profile in sorted({*runs["profile"][runs["weights_source"] == RANDOM]}):
        text += f" Profile {profile} is not comparable with the paper: weights are random."
    for name, title in (("commit", "commits"), ("versions", "versions")):
        found = sorted({value or "unknown" for value in runs[name]})
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
    """Return the calls of make that measure the cells of a setting, one for alike rows."""
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
        absent = CITED if row in results.spec.cited else MISSING
        yield (
            label,
            {
                key: _format_cell(
                    measured.get((row, key)),
                    paper.printed_value(row, key),
                    paper.columns[key],
                    decimals[key],
                    absent,
                )
                for key in paper.measurable
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
    estimate = MeanDeviation(cell["mean"], cell["std"], int(cell["count"]))
    measured = estimate.format(digits)
    if printed is None:
        return FormattedCell(measured, text, "", None, estimate)
    difference = round(estimate.mean - printed, digits)
    signed = f"{difference:+.{digits}f}".replace("-", "−")
    is_clear = abs(difference) > estimate.half_width and column.higher_is_better is not None
    better = (difference > 0) == column.higher_is_better if is_clear else None
    return FormattedCell(measured, text, signed, better, estimate)


def print_table(
    results: TableResults,
    profile: str,
    protocol: str,
    console: Console,
    columns: Sequence[str] | None = None,
) -> None:
    """Print the table of one profile and protocol; by default the columns that have a run."""
    paper, rows = results.paper, list(format_rows(results, profile, protocol))
    shown = paper.measurable
    measured = [c for c in shown if any(cells[c].estimate for _, cells in rows)]
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


def _color_cell(cell: FormattedCell) -> Text:
    weight = "bold" if cell.estimate else "dim"
    color = {True: "green", False: "red", None: "default"}[cell.better]
    printed, difference = (f" {cell.printed:>6}", "dim"), (f" {cell.difference:>7}", color)
    return Text.assemble((f"{cell.measured:>17}", weight), printed, difference)


def render_markdown(results: TableResults, out: Path) -> str:
    """Write the page of a table in the folder of its published runs."""
    spec, paper = results.spec, results.paper
    blocks = [f"# {paper.title}", paper.caption, f"Source: {paper.citation}."]
    blocks += [escape_markdown(describe_cells(results))]
    blocks += [spec.remark] if spec.remark else []
    blocks += [EXPLANATION] if results.settings else []
    anchors = provenance.make_anchors(results)
    for setting in results.settings:
        blocks += _render_setting(results, *setting, anchors)
    if results.settings:
        text = _RUNS.format(runs=provenance.RUNS)
        blocks += ["## Runs", text, *_render_runs(results, provenance.read_runs(out))]
    else:
        protocol = next(iter(spec.protocols))
        command = f"make table TABLE={spec.table} PROFILE=small PROTOCOL={protocol}"
        blocks.append(f"Nothing has been measured yet: `{command}`.")
    if paper.notes:
        blocks += ["## Notes on the printed values", "\n".join(f"- {n}" for n in paper.notes)]
    return "\n\n".join(blocks) + "\n"


def _render_setting(
    results: TableResults, profile: str, protocol: str, anchors: Mapping[tuple[str, str, str], str]
) -> Iterator[str]:
    """Yield the section of a profile and protocol; each of our numbers leads to its runs."""
    names = (escape_markdown(name, _IN_CODE) for name in (profile, protocol))
    yield "## Profile `{}`, protocol `{}`".format(*names)
    yield escape_markdown(describe_setting(results.spec, profile, protocol))
    commands = format_commands(results, profile, protocol)
    yield "\n".join(["```", *(escape_markdown(line, _IN_CODE) for line in commands), "```"])
    paper = results.paper
    head = ["method", *(paper.headings[key] for key in paper.measurable)]
    keys = results.spec.labels(paper)
    body = []
    for key, (label, cells) in zip(keys, format_rows(results, profile, protocol), strict=True):
        anchor, line = anchors.get((key, profile, protocol), ""), [escape_markdown(label)]
        for cell in cells.values():
            linked = cell.estimate and anchor
            difference = f" ({cell.difference})" if cell.difference else ""
            printed = f"<br>{cell.printed}{difference}" if cell.printed else ""
            line.append((f"[{cell.measured}](#{anchor})" if linked else cell.measured) + printed)
        body.append(line)
    yield render_table([*map(escape_markdown, head)], body)
    for make in (format_statistics, format_pairs, format_tests):
        if table := make(results, profile, protocol):
            head, *rows = ([*map(escape_markdown, line)] for line in (table.head, *table.body))
            yield from (escape_markdown(table.caption), render_table(head, rows))


def _render_runs(results: TableResults, published: Mapping[str, Any]) -> Iterator[str]:
    """Yield a heading and a table for the runs of each row, profile and protocol."""
    labels, headings = results.spec.labels(results.paper), results.paper.headings
    for setting in results.settings:
        found = provenance.list_run_lines(results, *setting, published)
        for row, lines in found.items():
            heading = provenance.format_heading(labels.get(row, row), *setting)
            yield f"### {escape_markdown(heading)}"
            shown = [{**line, "column": headings[line["column"]]} for line in lines]
            body = [[*map(escape_markdown, line.values())] for line in shown]
            yield render_table([*shown[0]], body)


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Write a Markdown table whose first columns are aligned to the left."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def escape_markdown(text: str, characters: str = "|`[]") -> str:
    """Escape what a name must not bring into a page: HTML, cells, code, links, lines.

    >>> escape_markdown("a<b>|c\\nd")
    'a&lt;b&gt;&#124;c d'
    """
    codes = {ord(c): f"&#{ord(c)};" for c in characters} | {ord("<"): "&lt;", ord(">"): "&gt;"}
    return " ".join(text.split()).translate(codes)
