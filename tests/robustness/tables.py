"""The table of outcomes: printed, and written as Markdown and CSV."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiment_kit.run import write_atomically
from rich.console import Console
from rich.table import Table

HEAD = ("run", "signal", "moment", "campaigns", "interruptions", "lost", "different", "seconds")
Row = tuple[str, str, str]  # the run, the signal, the kind of moment


@dataclass
class Outcome:
    """Interruptions that took place; why a run was lost; what is different."""

    interruptions: int = 0
    lost: str = ""
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.differences)


def list_lines(outcomes: Iterable[tuple[Row, Outcome]]) -> list[tuple[str, ...]]:
    """Return a line for each row, sorted, and the sum."""
    rows: dict[Row, list[Outcome]] = defaultdict(list)
    for row, outcome in outcomes:
        rows[row].append(outcome)
    every = [outcome for group in rows.values() for outcome in group]
    lines = [(*row, *count_outcomes(group)) for row, group in sorted(rows.items())]
    return [*lines, ("sum", "", "", *count_outcomes(every))]


def count_outcomes(group: Sequence[Outcome]) -> tuple[str, ...]:
    interruptions = sum(outcome.interruptions for outcome in group)
    lost = sum(bool(outcome.lost) for outcome in group)
    different = sum(bool(outcome.differences) for outcome in group)
    seconds = sum(outcome.seconds for outcome in group)
    return (*map(str, (len(group), interruptions, lost, different)), f"{seconds:.0f}")


def make_console() -> Console:
    """Make a console that is wide enough for the table where there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def print_table(title: str, lines: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(*HEAD, title=title)
    for line in lines:
        table.add_row(*line)
    console.print(table)


def write_tables(path: Path, lines: Sequence[Sequence[str]]) -> None:
    """Write `<path>.md` and `<path>.csv`."""
    marks = ["---"] * 3 + ["---:"] * (len(HEAD) - 3)
    rows = [f"| {' | '.join(line)} |\n" for line in (HEAD, marks, *lines)]
    write_atomically(path.with_suffix(".md"), "".join(rows))
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([HEAD, *lines])
    write_atomically(path.with_suffix(".csv"), buffer.getvalue())
