"""`papers/<table>.yaml` of an app: the experiment of each cell of a paper's table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property, reduce
from itertools import product, zip_longest
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from experiment_kit.app_files import ROW, find_table_specs, list_apps, read_settings
from experiment_kit.errors import UserError, check_name, convert_user_errors
from experiment_kit.launch.overlays import KINDS, NO_OVERLAY, choose_seeds, list_overlays
from experiment_kit.launch.plan import EigenvalueOptions, Experiment
from experiment_kit.papers.values import PaperTable, load_table

ALL = "all"  # names the tables of every paper
PAPER = "paper"  # names the protocol and the source of a table that its spec has
SEEDS = (0, 1, 2)
REPORTS = ("result", "efficiency", "eigenvalues")  # `<report>.json` in the folder of a run
SOURCES = ("text", "released")
_list_hints = cache(get_type_hints)
SELECTED = "-selected"  # ends the key of a row whose options a grid chose


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The experiment of a cell, or a part of it; empty fields are left to the other parts.

    `metric` is read from `<report>.json` in the run's folder; `scale` gives the paper's unit.
    """

    data: str = ""
    backbone: str = ""
    method: str = ""
    recipe: str = ""
    args: tuple[str, ...] = ()
    report: str = ""
    metric: str = ""
    scale: float = 0.0

    @property
    def overlays(self) -> dict[str, Any]:
        """The names of data set, backbone, method and recipe."""
        return {name: getattr(self, name) for name in ROW}

    def refine(self, finer: "Setting") -> "Setting":
        """Return this setting refined by another one, whose `{}` is replaced by the value here."""
        values: dict[str, Any] = {f.name: getattr(finer, f.name) for f in fields(Setting)}
        values |= {k: v.replace("{}", getattr(self, k)) for k, v in finer.overlays.items()}
        values["args"] = self.args + finer.args
        return replace(self, **{name: value for name, value in values.items() if value})


@dataclass(frozen=True, kw_only=True)
class Row(Setting):
    """A row; `label` names one that the paper does not have, `at` refines it by column.

    `app` trains it where that is not the table's app; `select` is the grid of what the paper
    selects for each column.
    """

    app: str = ""
    label: str = ""
    select: str = ""
    at: dict[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One seed of a cell: its experiment, its place in a table, and the metric that it shows."""

    experiment: Experiment
    table: str
    row: str
    column: str
    metric: str
    scale: float


@dataclass(frozen=True)
class Computed:
    """A computed column: another column, minus its value in a row if one is named."""

    column: str
    minus: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableSpec:
    """A paper's table as this repository makes it, to at least `digits` decimals.

    `protocol` is the paper's; only runs with it are compared with its numbers. `source` says
    whether these follow the paper's text or its released code, and `reason` how that is known.
    `other` refines the rows that differ in the other source, by patterns of their names; each such
    row is made twice. `differences` lists text, released code and what is done here by subject.

    `default` is refined by the row, then by the column, then by the row's `at`. A cell starts from
    the weights of the run that its setting refined by `start` describes, with the arguments of
    `start` alone, the profile and seed of the cell, and no protocol. `extra` holds rows that the
    paper does not have. `cited` maps printed rows that no library has to their source; `computed`
    columns need no run of their own. Every other row is compared with the `reference` by seed.
    `protocols` describe those that are this table's alone.
    """

    table: str
    app: str
    protocol: str
    source: Literal["text", "released"]
    reason: str
    default: Setting
    columns: dict[str, Setting]
    rows: dict[str, Row]
    other: dict[str, Row] = field(default_factory=dict)
    extra: dict[str, Row] = field(default_factory=dict)
    cited: dict[str, str] = field(default_factory=dict)
    computed: dict[str, Computed] = field(default_factory=dict)
    reference: str = ""
    start: Setting | None = None
    eigenvalues: EigenvalueOptions | None = None
    remark: str = ""
    protocols: dict[str, str] = field(default_factory=dict)
    differences: dict[str, list[str]] = field(default_factory=dict)
    digits: int = 2

    @property
    def other_source(self) -> str:
        """The source that the printed numbers do not follow."""
        return SOURCES[SOURCES[0] == self.source]

    @cached_property
    def others(self) -> dict[str, Row]:
        """The rows that differ in the other source, by the keys of the printed ones."""
        found: dict[str, Row] = {}
        for (patterns, finer), key in product(self.other.items(), self.rows):
            if not any(fnmatch(key, pattern.strip()) for pattern in patterns.split(",")):
                continue
            row = found.get(key, self.rows[key])
            parts = {c: (row.at.get(c), finer, finer.at.get(c)) for c in self.columns}
            at = {c: reduce(Setting.refine, filter(None, p), Setting()) for c, p in parts.items()}
            label = f"{self.paper.labels[key]} ({self.other_source})"
            found[key] = replace(row, at=at, label=label)
        return found

    @cached_property
    def all_rows(self) -> dict[str, Row]:
        """Every row that can be run."""
        others = {f"{key}-{self.other_source}": row for key, row in self.others.items()}
        return {**self.rows, **others, **self.extra}

    @cached_property
    def grids(self) -> dict[str, str]:
        """The grids of the rows that have one."""
        return {key: row.select for key, row in self.all_rows.items() if row.select}

    @cached_property
    def paper(self) -> PaperTable:
        """The table as it is printed."""
        return load_table(self.table)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of every row in the order of the table, the paper's rows first."""
        own = {key: row.label for key, row in self.all_rows.items() if key not in self.rows}
        labels = {**self.paper.labels, **own}
        return labels | {f"{key}{SELECTED}": f"{labels[key]} (selected)" for key in self.grids}

    @cached_property
    def decimals(self) -> dict[str, int]:
        """The decimals of each column: the paper's, and at least `digits`."""
        columns = self.paper.columns.items()
        return {key: max(self.digits, column.decimals or 0) for key, column in columns}

    def setting(self, row: str, column: str) -> Setting:
        """Return the setting of a cell."""
        chosen = self.all_rows[row.removesuffix(SELECTED)]
        parts = chosen, self.columns[column], chosen.at.get(column, Setting())
        return reduce(Setting.refine, parts, self.default)

    def choose_rows(self, source: str = PAPER) -> list[str]:
        """Return the printed rows, each as a source has it; by default as the printed numbers."""
        check_name(source, [PAPER, *SOURCES], "source")
        others = self.others if source == self.other_source else {}
        return [f"{key}-{source}" if key in others else key for key in self.rows]

    def list_cells(
        self, profile: str = PAPER, protocol: str = PAPER, seeds: Sequence[int] | None = None,
        rows: Sequence[str] | None = None, columns: Sequence[str] | None = None,
        source: str = PAPER,
    ) -> list[Cell]:  # fmt: skip
        """List the cells, all of one seed before the next; a cost has the first seed alone."""
        protocols = PAPER, NO_OVERLAY["protocol"], *list_overlays(self.app, "protocol")
        check_name(protocol, protocols, f"protocol of {self.table}")
        protocol = self.protocol if protocol == PAPER else protocol
        for kind, names, known in (("row", rows, self.all_rows), ("column", columns, self.columns)):
            for name in names or ():
                check_name(name, known, f"{kind} of {self.table} to run")
        places = product(rows or self.choose_rows(source), columns or self.columns)
        found = [self._list_seeds(r, c, profile, protocol, seeds) for r, c in places]
        return [cell for cells in zip_longest(*found) for cell in cells if cell]

    def _list_seeds(
        self, row: str, column: str, profile: str, protocol: str, seeds: Sequence[int] | None
    ) -> list[Cell]:
        setting, app = self.setting(row, column), self.all_rows[row].app or self.app
        args, source = setting.args, setting.report
        eigenvalues = self.eigenvalues if source == "eigenvalues" else None
        named = setting.overlays | {"app": app, "profile": profile, "protocol": protocol}
        experiment = Experiment(args=args, source=source, eigenvalues=eigenvalues, **named)
        if seeds is None:
            seeds = choose_seeds(app, SEEDS, **{k: getattr(experiment, k) for k in KINDS})
        start = None
        if self.start and experiment.is_trained:
            first = replace(setting, args=()).refine(self.start)
            own = {**first.overlays, "args": first.args}
            start = replace(experiment, **own, protocol="", source="result")
        place = self.table, row, column, setting.metric, setting.scale
        return [
            Cell(replace(experiment, seed=n, start=start and replace(start, seed=n)), *place)
            for n in (seeds if experiment.is_trained else seeds[:1])
        ]


def find_spec_files() -> dict[str, Path]:
    """Return the files of all tables by their names."""
    return {path.stem: path for app in list_apps() for path in find_table_specs(app)}


def find_spec(table: str) -> TableSpec:
    """Load the spec of a table; raises UserError, with all names, for an unknown one."""
    files = find_spec_files()
    return load_spec(files[check_name(table, sorted(files), "table")])


def find_tables(name: str) -> list[TableSpec]:
    """Return a table, the tables of a paper, or `all`; UserError for an unknown name."""
    files = find_spec_files()
    papers = {table: load_table(table).paper for table in files}
    check_name(name, [*dict.fromkeys(papers.values()), ALL, *sorted(files)], "table or paper")
    return [load_spec(p) for table, p in files.items() if name in (ALL, papers[table], table)]


def load_spec(path: Path) -> TableSpec:
    """Read `<table>.yaml` and check every name in it against the printed table."""
    with convert_user_errors(UserError, TypeError, prefix=f"{path}: "):
        top = {"columns": {}, "rows": {}, **read_settings(path), "table": path.stem}
        own = {field.name: top.pop(field.name) for field in fields(Setting) if field.name in top}
        top["default"] = {"report": "result", "scale": 1.0, **own}
        if isinstance(top["columns"], list):
            top["columns"] = {name: {"data": name} for name in top["columns"]}
        for kind in ("rows", "extra"):
            rows = top.get(kind, {}).items()
            top[kind] = {k: {"method": row} if isinstance(row, str) else row for k, row in rows}
        spec = parse_part(TableSpec, top)
        check_spec(spec)
    return spec


def check_spec(spec: TableSpec) -> None:
    """Raise UserError for an unknown row, column, report or protocol, or a cell that lacks one."""
    paper = spec.paper
    computed, rows = spec.computed.values(), [row.key for row in paper.rows]
    columns = [key for key, column in paper.columns.items() if column.role != "average"]
    tested = [spec.reference] if spec.reference else []
    refined = [column for row in spec.all_rows.values() for column in row.at]
    subtracted = [row for c in computed for pair in c.minus.items() for row in pair]
    for kind, allowed, names in (
        ("protocol", list_overlays(spec.app, "protocol"), [spec.protocol]),
        (f"row of {paper.id}", rows, [*spec.rows, *spec.cited, *tested]),
        (f"column of {paper.id}", columns, [*spec.columns, *spec.computed]),
        ("row that is measured", [*spec.all_rows], subtracted),
        ("column that is measured", [*spec.columns], refined + [c.column for c in computed]),
    ):
        for name in names:
            check_name(name, allowed, kind)
    for row, column in product(spec.all_rows, spec.columns):
        setting = spec.setting(row, column)
        check_name(setting.report, REPORTS, "report")
        for name in ("data", "backbone", "method", "metric"):
            if not getattr(setting, name):
                raise UserError(f"row {row}, column {column}: {name} is missing.")


def parse_part(kind: Any, values: Any, key: str = "") -> Any:
    """Convert settings to a type, with their parts; UserError, with the key, for a mistake."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType and is_dataclass(parts[0]):
        return parse_part(parts[0], values, key)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(values, dict):
        hints, given = _list_hints(kind), values.items()
        names = [check_name(name, hints, f"key of {key or 'a table'}") for name in values]
        found = [parse_part(hints[name], v, f"{key}.{name}".lstrip(".")) for name, v in given]
        return kind(**dict(zip(names, found, strict=True)))
    if origin is dict and isinstance(values, dict):
        return {name: parse_part(parts[1], v, f"{key}.{name}") for name, v in values.items()}
    if origin in (list, tuple) and isinstance(values, list | tuple):
        return origin(parse_part(parts[0], value, key) for value in values)
    if origin is Literal:
        return check_name(values, parts, key)
    allowed = float | int if kind is float else kind
    if origin not in (None, UnionType) or not isinstance(values, allowed):
        raise UserError(f"{key}: expected {kind}, got {values!r}")
    return values
