"""The table of outcomes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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


def make_table(outcomes: Iterable[tuple[Row, Outcome]]) -> Table:
    """Return a table with a line for each row, sorted, and the sum."""
    rows: dict[Row, list[Outcome]] = defaultdict(list)
    for row, outcome in outcomes:
        rows[row].append(outcome)
    table = Table(*HEAD, title="interruptions")
    for row, group in sorted(rows.items()):
        table.add_row(*row, *count_outcomes(group))
    every = [outcome for group in rows.values() for outcome in group]
    table.add_row("sum", "", "", *count_outcomes(every))
    return table


def count_outcomes(group: Sequence[Outcome]) -> tuple[str, ...]:
    interruptions = sum(outcome.interruptions for outcome in group)
    lost = sum(bool(outcome.lost) for outcome in group)
    different = sum(bool(outcome.differences) for outcome in group)
    seconds = sum(outcome.seconds for outcome in group)
    return (*map(str, (len(group), interruptions, lost, different)), f"{seconds:.0f}")
