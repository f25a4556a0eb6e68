"""The tables that the papers print, as data: `values/*.yaml`, one file per family."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from experiment_kit.tables.labels import tell_apart
from experiment_kit.tables.names import check


@dataclass(frozen=True)
class PaperColumn:
    """One column: what it measures, and over which columns it averages if it does."""

    name: str
    metric: str
    unit: str | None
    higher_is_better: bool | None
    role: str | None = None
    over: tuple[str, ...] = ()
    decimals: int | Mapping[str, int] | None = None  # a mapping where versions differ

    @property
    def digits(self) -> int:
        """How many decimals a number of ours needs, to stand beside the printed ones."""
        printed = self.decimals.values() if isinstance(self.decimals, Mapping) else [self.decimals]
        return max(count or 0 for count in printed)

    def text(self, value: float) -> str:
        """Write a value with the digits that the paper printed."""
        return f"{value:.{self.decimals}f}" if isinstance(self.decimals, int) else str(value)


@dataclass(frozen=True)
class PaperRow:
    """One row; `key` is its method, and whatever else it takes to tell it from the others."""

    key: str
    label: str
    method: str | None
    values: Mapping[str, Any]
    std: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A printed table, with our notes on what it misprints or leaves open."""

    id: str
    paper: str
    citation: str
    number: int
    caption: str
    quantity: str
    columns: Mapping[str, PaperColumn]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    orientation: str = "as printed"

    @property
    def title(self) -> str:
        """The name that a reader knows it by.

        >>> load("agf-table-1").title
        'AGF paper, Table 1'
        """
        names = {"agf": "AGF", "gfsa": "GFSA", "attnscale": "AttnScale"}
        name = names.get(self.paper, self.paper.replace("_", " ").title())
        return f"{name} paper, Table {self.number}"

    @property
    def averages(self) -> tuple[str, ...]:
        """The columns that average others."""
        return tuple(key for key, column in self.columns.items() if column.role == "average")

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that can be measured, and not those that say what a row is."""
        return tuple(key for key, column in self.columns.items() if column.role != "given")

    @property
    def headings(self) -> dict[str, str]:
        """What the reader calls each column: its name, with the unit where another has that name.

        >>> load("agf-table-21").headings["heartbeat_memory"]
        'HB, GB'
        """
        named = Counter(column.name for column in self.columns.values())
        return {
            key: column.name if named[column.name] == 1 else f"{column.name}, {column.unit}"
            for key, column in self.columns.items()
        }

    @property
    def labels(self) -> dict[str, str]:
        """What the reader calls each row: its label, and what tells it from others of that label.

        >>> load("gfsa-table-11").labels["gfsa-cait_s-24-2"]
        'CaiT-S + GFSA, k=2'
        """
        given = {*self.columns} - {*self.shown}
        facts = [
            {**row.about, **{key: row.values.get(key) for key in self.columns if key in given}}
            for row in self.rows
        ]
        called = tell_apart([row.label for row in self.rows], facts)
        return {row.key: label for row, label in zip(self.rows, called, strict=True)}

    def row(self, key: str) -> PaperRow:
        """Return a row by its key.

        >>> load("agf-table-1").row("agf").values["heartbeat"]
        79.0
        """
        rows = {row.key: row for row in self.rows}
        return rows[check(key, rows, f"row of {self.id}")]

    def value(self, row: str, column: str) -> float | None:
        """Return the printed value, or nothing where the paper has no such cell."""
        return next((r.values.get(column) for r in self.rows if r.key == row), None)


def known() -> list[str]:
    """List the ids of all tables that ship.

    >>> "agf-table-1" in known()
    True
    """
    return list(_tables())


def load(table_id: str) -> PaperTable:
    """Return a printed table.

    Raises a `UserError` that names the tables with a similar id if there is none with this one.
    """
    return _tables()[check(table_id, known(), "paper table")]


@cache
def _tables() -> dict[str, PaperTable]:
    return {table.id: table for table in _parse_all()}


def _parse_all() -> Iterator[PaperTable]:
    folder = files("experiment_kit.tables") / "values"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        family = yaml.safe_load(file.read_text(encoding="utf-8"))
        for entry in family["tables"]:
            yield _parse(family["paper"], family["citation"], entry)


def _parse(paper: str, citation: str, entry: dict[str, Any]) -> PaperTable:
    columns = {
        key: PaperColumn(**{**column, "over": tuple(column.get("over", ()))})
        for key, column in entry["columns"].items()
    }
    rows = tuple(map(_row, _keys(entry["rows"]), entry["rows"]))
    parsed = {"columns": columns, "rows": rows, "notes": tuple(entry["notes"])}
    return PaperTable(paper=paper, citation=citation, **{**entry, **parsed})


def _row(key: str, row: dict[str, Any]) -> PaperRow:
    named = {name: row[name] for name in ("label", "method", "values", "std") if name in row}
    about = {name: value for name, value in row.items() if name not in named}
    return PaperRow(key=key, about=about, **named)


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    keys = [row["method"] or row.get("dataset") or row["label"] for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in ("label", "method", "values", "std"):
            continue
        count = Counter(keys)
        keys = [
            f"{key}-{row[name]}" if count[key] > 1 and name in row else key
            for key, row in zip(keys, rows, strict=True)
        ]
    seen: Counter[str] = Counter()
    for i, key in enumerate(keys):
        seen[key] += 1
        keys[i] = key if seen[key] == 1 else f"{key}-{seen[key]}"
    return keys
