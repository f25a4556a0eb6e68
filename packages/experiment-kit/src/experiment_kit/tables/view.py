"""What a reader sees of one profile and protocol of a table, whatever it is printed on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiment_kit.tables.origin import is_random, note
from experiment_kit.tables.paper import PaperTable
from experiment_kit.tables.spec import TableSpec
from experiment_kit.tables.wilcoxon import significance

MISSING = "–"
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
}


@dataclass(frozen=True)
class Entry:
    """One cell, its numbers as text; `better` says whether the difference is in our favour."""

    measured: str
    printed: str
    difference: str
    better: bool | None


@dataclass(frozen=True)
class PValues:
    """A table of p-values as text."""

    caption: str
    head: list[str]
    body: list[list[str]]


def legend(paper: PaperTable, frame: pd.DataFrame) -> str:
    """Say what stands in a cell, and whether it can be compared."""
    random = frame["profile"][frame["origin"].map(is_random)]
    points = {paper.columns[key].unit for key in paper.shown} == {"%"}
    return (
        "Each cell is our mean ± sample standard deviation (number of seeds), then the value that "
        f"the paper prints and our difference to it{' in points' if points else ''}; "
        f"{MISSING} is not measured.{note(sorted({*random}))}"
    )


def settings(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """List the profiles and protocols that the table has been measured under."""
    return sorted(set(zip(frame["profile"], frame["protocol"], strict=True)))


def explain(spec: TableSpec, profile: str, protocol: str) -> str:
    """Say in a sentence what a profile and a protocol do."""
    arguments = " ".join(spec.protocols.get(protocol, ())) or "no extra arguments"
    return (
        f"Profile {profile}: {PROFILES.get(profile, 'see its overlay')}. "
        f"Protocol {protocol}: {PROTOCOLS.get(protocol, f'runs with {arguments}')}."
    )


def command(spec: TableSpec, profile: str, protocol: str, frame: pd.DataFrame | None = None) -> str:
    """Return the command that makes the table; rows that it leaves out are named if measured."""
    measured = None if frame is None else _of(frame, profile, protocol).dropna(subset="mean")
    made = set() if measured is None else {*measured["row"]}
    named = [key for key, row in spec.made.items() if row.random and key in made]
    args = f' ARGS="--rows=[{",".join(named)}]"' if named else ""
    return f"make table TABLE={spec.table} PROFILE={profile} PROTOCOL={protocol}{args}"


def lines(
    frame: pd.DataFrame, paper: PaperTable, spec: TableSpec, profile: str, protocol: str
) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Yield the rows of the table: its label, and its cells by column."""
    records = _of(frame, profile, protocol).to_dict("records")
    found = {(record["row"], record["column"]): record for record in records}
    decimals = spec.decimals(paper)
    for row, label in spec.labels(paper).items():
        cells = {
            key: _entry(found.get((row, key)), paper, row, key, decimals[key])
            for key in paper.shown
        }
        yield label, cells


def p_values(
    frame: pd.DataFrame, paper: PaperTable, spec: TableSpec, profile: str, protocol: str
) -> PValues | None:
    """Return the p-values of the reference row against the others, or nothing to show."""
    found = [s for s in significance(_of(frame, profile, protocol), spec) if s.p_value is not None]
    if not found or spec.significance is None:
        return None
    labels = spec.labels(paper)
    body = [
        [labels.get(s.row, s.row), str(s.n), _p(s.p_value), _p(s.paper), s.method] for s in found
    ]
    return PValues(
        f"Two-sided Wilcoxon signed-rank test of {labels[spec.significance.row]} against each row, "
        "over the n columns that both have; the one-sided p-value is half of it or, where the row "
        "is the better one, one minus that.",
        ["against", "n", "p", "printed p", "variant"],
        body,
    )


def _of(frame: pd.DataFrame, profile: str, protocol: str) -> pd.DataFrame:
    return frame[(frame["profile"] == profile) & (frame["protocol"] == protocol)]


def _p(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _entry(
    record: dict[str, Any] | None, paper: PaperTable, row: str, key: str, digits: int
) -> Entry:
    printed, column = paper.value(row, key), paper.columns[key]
    text = "" if printed is None else column.text(printed)
    if record is None or math.isnan(record["mean"]):
        return Entry(MISSING, text, "", None)
    deviation = "" if math.isnan(record["std"]) else f" ± {record['std']:.{digits}f}"
    measured = f"{record['mean']:.{digits}f}{deviation} ({len(record['seeds'].split())})"
    if printed is None:
        return Entry(measured, text, "", None)
    difference = round(record["mean"] - printed, digits)
    better = (difference > 0) == column.higher_is_better if difference else None
    return Entry(measured, text, f"{difference:+.{digits}f}".replace("-", "−"), better)
