"""`papers/<table>.yaml` of an app: the experiment of each cell of a paper's table."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, reduce
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from experiment_kit.app_files import find_table_specs, list_apps, read_settings
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.launch.overlays import KINDS, ROW, choose_seeds, list_overlays, read_overlay
from experiment_kit.launch.plan import EigenvalueOptions, Experiment
from experiment_kit.papers.values import PaperTable, check_name, load_table

ALL = "all"  # names the tables of every paper
SEEDS = (0, 1, 2)
SOURCES = ("result", "efficiency", "eigenvalues")  # `<source>.json` in the folder of a run


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The experiment of a cell, or a part of it; empty fields are left to the other parts.

    `metric` is read from `<source>.json` in the folder of the run; `scale` converts it to the
    paper's unit.
    """

    data: str = ""
    backbone: str = ""
    method: str = ""
    recipe: str = ""
    args: tuple[str, ...] = ()
    source: str = ""
    metric: str = ""
    scale: float = 0.0

    @property
    def overlays(self) -> dict[str, Any]:
        """The names of data set, backbone, method and recipe."""
        return {name: getattr(self, name) for name in ROW}

    def refine(self, finer: "Setting") -> "Setting":
        """Return this setting with the fields of `finer`, in which `{}` stands for the value here.

        Arguments add up, so that those of the finer setting win.

        >>> Setting(backbone="deit_tiny").refine(Setting(backbone="{}_16")).backbone
        'deit_tiny_16'
        """
        values: dict[str, Any] = {f.name: getattr(finer, f.name) for f in fields(Setting)}
        values |= {k: v.replace("{}", getattr(self, k)) for k, v in finer.overlays.items()}
        values["args"] = self.args + finer.args
        return replace(self, **{name: value for name, value in values.items() if value})


@dataclass(frozen=True, kw_only=True)
class Row(Setting):
    """A row; `label` names one that the paper does not have, `at` refines it by column.

    `app` trains it where that is not the table's app. `random` marks a row of random weights in a
    table of pretrained ones: it is made only where it is named, and not mixed with the others.
    """

    app: str = ""
    label: str = ""
    random: bool = False
    at: dict[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One seed of a cell: its experiment, its place in a table, and the metric that it shows."""

    experiment: Experiment
    table: str
    row: str
    column: str
    protocol: str
    metric: str
    scale: float


@dataclass(frozen=True)
class Reference:
    """The paper's table of p-values, and the row that every other row is tested against."""

    table: str
    row: str


@dataclass(frozen=True)
class Computed:
    """A computed column: another column, minus its value in a row if one is named."""

    column: str
    minus: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableSpec:
    """A paper's table as this repository makes it, to at least `digits` decimals.

    `default` is refined by the row, then by the column, then by the row's `at`. A cell starts from
    the weights of the run that its setting refined by `start` describes, with the arguments of
    `start` alone, the profile and seed of the cell, and no protocol. `eigenvalues` has samples and
    epoch of the cells of this source. `extra` holds rows that the paper does not have; `remark`
    states how our settings differ from the paper's. `protocols` has the arguments of each protocol
    beside those of its overlay. `cited` maps printed rows that no library has to their source;
    `computed` columns need no run of their own.
    """

    table: str
    app: str
    default: Setting
    columns: dict[str, Setting]
    rows: dict[str, Row]
    protocols: dict[str, list[str]]
    extra: dict[str, Row] = field(default_factory=dict)
    cited: dict[str, str] = field(default_factory=dict)
    computed: dict[str, Computed] = field(default_factory=dict)
    significance: Reference | None = None
    start: Setting | None = None
    eigenvalues: EigenvalueOptions | None = None
    remark: str = ""
    digits: int = 2

    @property
    def all_rows(self) -> dict[str, Row]:
        """Every row that can be run."""
        return {**self.rows, **self.extra}

    @property
    def default_rows(self) -> list[str]:
        """The rows that are made where none is named: those of random weights are not."""
        return [key for key, row in self.all_rows.items() if not row.random]

    def set_eigenvalues(self, **options: Any) -> "TableSpec":
        """Return the table with other `samples` or `epoch`, where they are not None."""
        chosen = {name: value for name, value in options.items() if value is not None}
        if not chosen:
            return self
        settings = (self.setting(row, column) for row in self.all_rows for column in self.columns)
        if all(setting.source != "eigenvalues" for setting in settings):
            names = " and ".join(f"--{name}" for name in chosen)
            raise UserError(f"{names}: {self.table} measures no eigenvalues")
        return replace(self, eigenvalues=replace(self.eigenvalues or EigenvalueOptions(), **chosen))

    @cached_property
    def paper(self) -> PaperTable:
        """The table as it is printed."""
        return load_table(self.table)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of every row in the order of the table, the paper's rows first."""
        return {**self.paper.labels, **{key: row.label for key, row in self.extra.items()}}

    @cached_property
    def decimals(self) -> dict[str, int]:
        """The decimals of each column: the paper's, and at least `digits`."""
        return {key: max(self.digits, column.digits) for key, column in self.paper.columns.items()}

    def setting(self, row: str, column: str) -> Setting:
        """Return the setting of a cell."""
        chosen = self.all_rows[row]
        parts = chosen, self.columns[column], chosen.at.get(column, Setting())
        return reduce(Setting.refine, parts, self.default)

    def list_cells(
        self,
        profile: str,
        protocol: str,
        seeds: Sequence[int] | None = None,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Cell]:
        """List the cells, the whole table for the first seed before the next seed begins.

        Seeds that are not given are those of the protocol. The cost of a model has no seed: such
        cells are listed for the first one alone.
        """
        protocols = dict.fromkeys([*self.protocols, *list_overlays(self.app, "protocol")])
        check_name(protocol, protocols, f"protocol of {self.table}")
        all_rows = self.all_rows
        rows = [check_name(r, all_rows, f"row of {self.table} to run") for r in rows or all_rows]
        columns = [
            check_name(c, self.columns, f"column of {self.table}") for c in columns or self.columns
        ]
        places = product(rows, columns)
        found = [self._list_seeds(r, c, profile, protocol, seeds) for r, c in places]
        return [cell for cells in zip_longest(*found) for cell in cells if cell]

    def _list_seeds(
        self, row: str, column: str, profile: str, protocol: str, seeds: Sequence[int] | None
    ) -> list[Cell]:
        setting, app = self.setting(row, column), self.all_rows[row].app or self.app
        has_overlay = protocol in list_overlays(app, "protocol") or protocol not in self.protocols
        experiment = Experiment(
            app=app,
            profile=profile,
            protocol=protocol if has_overlay else "",
            args=(*setting.args, *self.protocols.get(protocol, ())),
            eigenvalues=self.eigenvalues if setting.source == "eigenvalues" else None,
            source=setting.source,
            **setting.overlays,
        )
        if seeds is None:
            seeds = choose_seeds(app, SEEDS, **{k: getattr(experiment, k) for k in KINDS})
        start = None
        if self.start and experiment.is_trained:
            first = replace(setting, args=()).refine(self.start)
            start = replace(
                experiment, **first.overlays, args=first.args, protocol="", source="result"
            )
        place = self.table, row, column, protocol, setting.metric, setting.scale
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
    """Read `<table>.yaml` and check every name in it against the printed table.

    Keys at its top are the default of every cell. A row may be the name of its method alone, and
    columns a list of data sets. Raises a UserError that names the file and the key.
    """
    with convert_user_errors(UserError, ArgumentError, ValueError, prefix=f"{path}: "):
        top = {"columns": {}, "rows": {}, **read_settings(path), "table": path.stem}
        own = {field.name: top.pop(field.name) for field in fields(Setting) if field.name in top}
        top["default"] = {"source": "result", "scale": 1.0, **own}
        if isinstance(top["columns"], list):
            top["columns"] = {name: {"data": name} for name in top["columns"]}
        for kind in ("rows", "extra"):
            rows = top.get(kind, {}).items()
            top[kind] = {k: {"method": row} if isinstance(row, str) else row for k, row in rows}
        spec = parse_part(TableSpec, top)
        check_spec(spec)
    return spec


def check_spec(spec: TableSpec) -> None:
    """Raise UserError for an unknown row, column, source or overlay, or a cell that lacks one."""
    paper = spec.paper
    computed, rows = spec.computed.values(), [row.key for row in paper.rows]
    columns = [column for column in paper.columns if column not in paper.averages]
    tested = [spec.significance.row] if spec.significance else []
    refined = [column for row in spec.all_rows.values() for column in row.at]
    subtracted = [row for c in computed for pair in c.minus.items() for row in pair]
    for kind, allowed, names in (
        (f"row of {paper.id}", rows, [*spec.rows, *spec.cited, *tested]),
        (f"column of {paper.id}", columns, [*spec.columns, *spec.computed]),
        ("row that is measured", [*spec.rows], subtracted),
        ("column that is measured", [*spec.columns], refined + [c.column for c in computed]),
    ):
        for name in names:
            check_name(name, allowed, kind)
    for row, column in product(spec.all_rows, spec.columns):
        setting, app = spec.setting(row, column), spec.all_rows[row].app or spec.app
        check_name(setting.source, SOURCES, "source")
        for name in ("data", "backbone", "method", "metric"):
            if not getattr(setting, name):
                raise UserError(f"row {row}, column {column}: {name} is missing.")
        for part in (setting, *([setting.refine(spec.start)] if spec.start else [])):
            for kind, name in part.overlays.items():
                if name:
                    read_overlay(app, kind, name)


def parse_part(kind: type, values: Any) -> Any:
    """Parse a part of a spec in YAML; raises ArgumentError, with the key, for a mistake in it."""
    parser = _build_parser(kind)
    return kind(**vars(parser.instantiate_classes(parser.parse_object(deepcopy(values)))))


@cache
def _build_parser(kind: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, as_group=False)
    return parser
