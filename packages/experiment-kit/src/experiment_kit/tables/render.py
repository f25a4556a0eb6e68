"""The table in a terminal, and as a page of the documentation."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiment_kit.tables import view
from experiment_kit.tables.names import check
from experiment_kit.tables.paper import PaperTable
from experiment_kit.tables.spec import TableSpec

CELL = 17 + 7 + 8 + 3  # what a cell takes in a terminal, with its border


def terminal(
    frame: pd.DataFrame,
    paper: PaperTable,
    spec: TableSpec,
    profile: str,
    protocol: str,
    console: Console,
    columns: Sequence[str] | None = None,
) -> None:
    """Print the table of one profile and protocol; by default the columns that have a run.

    Raises a `UserError` that lists the columns if one is asked for that the table lacks.
    """
    rows = list(view.lines(frame, paper, spec, profile, protocol))
    shown = paper.shown
    measured = [c for c in shown if any(cells[c].measured != view.MISSING for _, cells in rows)]
    chosen = [check(c, shown, f"column of {spec.table}") for c in columns or measured or shown]
    across = max(1, (console.width - max(len(label) for label, _ in rows) - 4) // CELL)
    for start in range(0, len(chosen), across):
        table = Table(title=f"{paper.title} · {profile} · {protocol}")
        table.add_column("method")
        for key in chosen[start : start + across]:
            table.add_column(paper.headings[key], no_wrap=True)
        for label, cells in rows:
            table.add_row(label, *(_coloured(cells[key]) for key in chosen[start : start + across]))
        console.print(table)
    absent = [paper.headings[c] for c in shown if c not in chosen]
    note = f" Not shown: {', '.join(absent)}." if absent else ""
    console.print(
        view.legend(paper, frame[frame["profile"] == profile]) + note, style="dim", highlight=False
    )


def markdown(frame: pd.DataFrame, paper: PaperTable, spec: TableSpec) -> str:
    """Write the page of a table: what was measured, and the notes on misprints."""
    blocks = [
        f"# {paper.title}",
        paper.caption,
        f"Source: {paper.citation}.",
        view.legend(paper, frame),
    ]
    blocks += [spec.remark] if spec.remark else []
    for profile, protocol in view.settings(frame):
        blocks += _section(frame, paper, spec, profile, protocol)
    if not view.settings(frame):
        example = view.command(spec, "small", next(iter(spec.protocols)))
        blocks.append(f"Nothing has been measured yet: `{example}`.")
    if paper.notes:
        blocks += ["## Notes on the printed values", _list(paper.notes)]
    return "\n\n".join(blocks) + "\n"


def _coloured(entry: view.Entry) -> Text:
    weight = "dim" if entry.measured == view.MISSING else "bold"
    colour = {True: "green", False: "red", None: "default"}[entry.better]
    return Text.assemble(
        (f"{entry.measured:>17}", weight),
        (f" {entry.printed:>6}", "dim"),
        (f" {entry.difference:>7}", colour),
    )


def _section(
    frame: pd.DataFrame, paper: PaperTable, spec: TableSpec, profile: str, protocol: str
) -> Iterator[str]:
    names = [paper.headings[key] for key in paper.shown]
    rows = [
        [label, *map(_cell, cells.values())]
        for label, cells in view.lines(frame, paper, spec, profile, protocol)
    ]
    yield f"## Profile `{profile}`, protocol `{protocol}`"
    yield view.explain(spec, profile, protocol)
    yield f"```\n{view.command(spec, profile, protocol, frame)}\n```"
    yield _table(["method", *names], rows)
    if tests := view.p_values(frame, paper, spec, profile, protocol):
        yield tests.caption
        yield _table(tests.head, tests.body)


def _cell(entry: view.Entry) -> str:
    difference = f" ({entry.difference})" if entry.difference else ""
    printed = f"<br>{entry.printed}{difference}" if entry.printed else ""
    return f"{entry.measured}{printed}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
