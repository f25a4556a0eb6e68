"""The tables that the papers print, read from `values/*.yaml`, one file per family of tables."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from experiment_kit.app_files import read_settings
from experiment_kit.errors import check_name

PAPER_NAMES = {"agf": "AGF", "gfsa": "GFSA", "attnscale": "AttnScale"}
MORE_TESTS = {
    "imagenet_1k": 50_000, "imagenet_100": 5_000, "sst2": 872, "mnli_m": 9_815, "mnli_mm": 9_832,
    "qnli": 5_463, "rte": 277, "devign": 2_732, "devign_generate": 2_732,
}  # fmt: skip
ROW_KEYS = ("label", "method", "values", "std")


def disambiguate_names(
    names: Sequence[str], facts: Sequence[Mapping[str, Any]], form: str = "{0}, {1}={2}",
    number: str = "{} ({})", with_equal: bool = False,
) -> list[str]:  # fmt: skip
    """Add to each name the facts that differ among the rows that share it, or all of them."""
    found = list(names)
    for fact in dict.fromkeys(fact for row in facts for fact in row):
        values: dict[str, list[Any]] = defaultdict(list)
        for name, row in zip(found, facts, strict=True):
            values[name].append(row.get(fact))
        shared = {name for name, v in values.items() if len(v if with_equal else {*v}) > 1}
        found = [
            form.format(name, fact, row[fact]) if name in shared and fact in row else name
            for name, row in zip(found, facts, strict=True)
        ]
    counts = [found[: i + 1].count(name) for i, name in enumerate(found)]
    return [number.format(x, n) if n > 1 else x for x, n in zip(found, counts, strict=True)]


@dataclass(frozen=True)
class PaperColumn:
    """One column: its metric and unit, and the columns that it averages, if any."""

    name: str
    metric: str
    unit: str | None
    higher_is_better: bool | None
    role: str | None = None
    over: tuple[str, ...] = ()
    decimals: int | None = None  # none where rows differ

    def format_value(self, value: float) -> str:
        """Write a value with the digits that the paper printed."""
        return str(value) if self.decimals is None else f"{value:.{self.decimals}f}"


@dataclass(frozen=True)
class PaperRow:
    """One row; `key` is its method, and the facts that distinguish it from rows of that method."""

    key: str
    label: str
    method: str | None
    values: Mapping[str, Any]
    std: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A printed table, with notes on its misprints and on what it leaves open."""

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
    kind: str = "Table"  # or Figure, whose values cannot be read

    @property
    def title(self) -> str:
        """The name of the paper and the number of the table."""
        name = PAPER_NAMES.get(self.paper, self.paper.replace("_", " ").title())
        return f"{name} paper, {self.kind} {self.number}"

    @property
    def measurable(self) -> tuple[str, ...]:
        """The columns that can be measured; the others describe a row."""
        return tuple(key for key, column in self.columns.items() if column.role != "given")

    @property
    def headings(self) -> dict[str, str]:
        """The heading of each column: its name, with the unit where another column has it."""
        named = Counter(column.name for column in self.columns.values())
        return {
            key: column.name if named[column.name] == 1 else f"{column.name}, {column.unit}"
            for key, column in self.columns.items()
        }

    @property
    def labels(self) -> dict[str, str]:
        """The label of each row, with the facts that distinguish rows of one label."""
        given = {*self.columns} - {*self.measurable}
        facts = [
            {**row.about, **{key: row.values.get(key) for key in self.columns if key in given}}
            for row in self.rows
        ]
        labels = disambiguate_names([row.label for row in self.rows], facts)
        return {row.key: label for row, label in zip(self.rows, labels, strict=True)}

    def find_row(self, key: str) -> PaperRow:
        """Return a row by its key."""
        rows = {row.key: row for row in self.rows}
        return rows[check_name(key, rows, f"row of {self.id}")]

    def printed_value(self, row: str, column: str) -> float | None:
        """Return the printed value, or nothing where the paper has no such cell."""
        return next((r.values.get(column) for r in self.rows if r.key == row), None)


def load_table(table_id: str) -> PaperTable:
    """Return a printed table; raises UserError, with similar ids, for an unknown id."""
    tables = read_tables()
    return tables[check_name(table_id, tables, "paper table")]


def count_tests(data: str) -> int:
    """Return the number of tests of a data set, or of a column of one; 0 if it is not known."""
    tables = (table for table in read_tables().values() if table.quantity == "dataset_statistics")
    counts = {r.about["dataset"]: r.values["test"] for table in tables for r in table.rows}
    return int(counts.get(data) or MORE_TESTS.get(data, 0))


@cache
def read_tables() -> dict[str, PaperTable]:
    """Return all printed tables by their ids."""
    families = map(read_settings, sorted((Path(__file__).parent / "values").glob("*.yaml")))
    tables = (_parse_table(family, entry) for family in families for entry in family["tables"])
    return {table.id: table for table in tables}


def _parse_table(family: Mapping[str, Any], entry: Mapping[str, Any]) -> PaperTable:
    columns = {
        key: PaperColumn(**{**column, "over": tuple(column.get("over", ()))})
        for key, column in entry["columns"].items()
    }
    names = [row["method"] or row.get("dataset") or row["label"] for row in entry["rows"]]
    facts = [{k: v for k, v in row.items() if k not in ROW_KEYS} for row in entry["rows"]]
    keys = disambiguate_names(names, facts, "{0}-{2}", "{}-{}", with_equal=True)
    rows = tuple(
        PaperRow(key=key, about=about, **{k: row[k] for k in ROW_KEYS if k in row})
        for key, about, row in zip(keys, facts, entry["rows"], strict=True)
    )
    parsed = {"columns": columns, "rows": rows, "notes": tuple(entry["notes"])}
    return PaperTable(paper=family["paper"], citation=family["citation"], **{**entry, **parsed})
