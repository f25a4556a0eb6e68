"""Which overlays make each cell of a paper's table: `apps/<app>/tables/<paper-table-id>.yaml`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import yaml

from experiment_kit.errors import UserError
from experiment_kit.tables.names import check
from experiment_kit.tables.paper import PaperTable, load

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One run of a table: the overlays and extra arguments that make it."""

    table: str
    row: str
    column: str
    app: str
    backbone: str
    data: str
    method: str
    profile: str
    protocol: str
    seed: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ExtraRow:
    """A row that the paper does not have."""

    method: str
    label: str


@dataclass(frozen=True)
class Reference:
    """The paper's table of p-values, and the row that every other row is tested against."""

    table: str
    row: str


@dataclass(frozen=True)
class TableSpec:
    """A paper's table as this repository makes it; `scale` takes our metric to its unit.

    `remark` says how our settings differ from the paper's.
    """

    table: str
    app: str
    backbone: str
    metric: str
    columns: tuple[str, ...]
    rows: Mapping[str, str]
    protocols: Mapping[str, tuple[str, ...]]
    scale: float = 1.0
    extra: Mapping[str, ExtraRow] = field(default_factory=dict)
    significance: Reference | None = None
    remark: str = ""

    @property
    def methods(self) -> dict[str, str]:
        """The method overlay of every row that can be run."""
        return {**self.rows, **{key: row.method for key, row in self.extra.items()}}

    def labels(self, paper: PaperTable) -> dict[str, str]:
        """Every row in the order of the table, the paper's first, with what the reader calls it."""
        printed = {row.key: row.label for row in paper.rows}
        return {**printed, **{key: row.label for key, row in self.extra.items()}}

    def shown(self, paper: PaperTable) -> tuple[str, ...]:
        """The columns of our table: those that can be run, and the averages over them."""
        averages = (a for a in paper.averages if {*paper.columns[a].over} <= {*self.columns})
        return (*self.columns, *averages)

    def cells(
        self,
        profile: str,
        protocol: str,
        seeds: Iterable[int],
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Cell]:
        """List the runs, a whole table for the first seed before the next seed begins.

        Raises a `UserError` that lists the allowed names if a row, column or protocol has another.
        """
        check(protocol, self.protocols, f"protocol of {self.table}")
        methods = self.methods
        chosen_rows = [check(r, methods, f"row of {self.table} to run") for r in rows or methods]
        chosen_columns = [
            check(c, self.columns, f"column of {self.table}") for c in columns or self.columns
        ]
        return [
            Cell(
                self.table, row, column, self.app, self.backbone, column, methods[row],
                profile, protocol, seed, self.protocols[protocol],
            )
            for seed, row, column in product(seeds, chosen_rows, chosen_columns)
        ]  # fmt: skip


def load_spec(path: Path | str) -> TableSpec:
    """Read `<paper-table-id>.yaml` and check every name in it against the printed table.

    Raises a `UserError` if the file is absent, or says something that it cannot.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: a table needs a file that says how it is made.")
    raw = _mapping(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    paper = load(path.stem)
    spec = _build(TableSpec, {"table": path.stem, **_nested(raw, path)}, str(path))
    _check_names(spec, paper, path)
    return spec


def _nested(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    nested = dict(raw)
    for name in {"rows", "extra", "protocols", "significance"} & {*raw}:
        nested[name] = _mapping(raw[name], f"{path}, {name}")
    _texts(list(nested.get("rows", {}).values()), f"{path}, rows")
    if "columns" in raw:
        nested["columns"] = _texts(raw["columns"], f"{path}, columns")
    if "extra" in raw:
        extra = {key: (row, f"{path}, extra.{key}") for key, row in nested["extra"].items()}
        nested["extra"] = {k: _build(ExtraRow, _mapping(*row), row[1]) for k, row in extra.items()}
    if "protocols" in raw:
        protocols = nested["protocols"].items()
        nested["protocols"] = {k: _texts(v, f"{path}, protocols.{k}") for k, v in protocols}
    if "significance" in raw:
        nested["significance"] = _build(Reference, nested["significance"], f"{path}, significance")
    return nested


def _check_names(spec: TableSpec, paper: PaperTable, path: Path) -> None:
    printed = [row.key for row in paper.rows]
    for row in spec.rows:
        check(row, printed, f"row of {paper.id}, which {path} gives a method,")
    for column in spec.columns:
        check(
            column, [c for c in paper.columns if c not in paper.averages], f"column of {paper.id}"
        )
    if clash := sorted({*spec.extra} & {*printed}):
        raise UserError(f"{path}, extra: {', '.join(clash)} is a row of {paper.id}; use rows.")
    if spec.significance:
        load(spec.significance.table)
        check(spec.significance.row, printed, f"row of {paper.id} to test against")


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    allowed = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        check(name, allowed, f"key in {where}")
    needed = (n for n, f in allowed.items() if f.default is f.default_factory is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}.")
    for name, value in values.items():
        if allowed[name].type is str and not isinstance(value, str):
            raise UserError(f"{where}, {name}, must be a text, and is {value!r}.")
        if allowed[name].type is float and not isinstance(value, int | float):
            raise UserError(f"{where}, {name}, must be a number, and is {value!r}.")
    return kind(**values)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must map names to values, and is {value!r}.")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} must be a list of texts, and is {value!r}.")
    return tuple(value)
