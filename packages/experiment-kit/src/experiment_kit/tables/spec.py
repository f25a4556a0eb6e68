"""Which runs make a paper's table: a setting for each row and column, refined into cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import product
from typing import Any

from experiment_kit.tables.names import check
from experiment_kit.tables.paper import PaperTable

SOURCES = ("result", "efficiency", "eigenvalues")  # `<source>.json` in the folder of a run


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What makes a cell, or a part of it; what is empty is left to the other parts.

    Overlays and arguments say which run it is; `metric` is read from `<source>.json` in its
    folder, and `scale` takes it to the paper's unit.
    """

    data: str = ""
    backbone: str = ""
    method: str = ""
    recipe: str = ""
    args: tuple[str, ...] = ()
    source: str = ""
    metric: str = ""
    scale: float = 0.0

    def refined(self, finer: "Setting") -> "Setting":
        """Return this setting with what `finer` says; `{}` in it stands for what was said here.

        Arguments add up, so that those of the finer setting win.

        >>> Setting(backbone="deit_tiny").refined(Setting(backbone="{}_16")).backbone
        'deit_tiny_16'
        """
        said: dict[str, Any] = {f.name: getattr(finer, f.name) for f in fields(Setting)}
        for name in ("data", "backbone", "method", "recipe"):
            said[name] = said[name].replace("{}", getattr(self, name))
        said["args"] = self.args + finer.args
        return replace(self, **{name: value for name, value in said.items() if value})


@dataclass(frozen=True, kw_only=True)
class Row(Setting):
    """A row: `label` names one that the paper does not have, `at` refines it by column.

    `app` is the app that makes it, where it is not the table's. `random` says that it starts from
    random weights where others of its table do not: it is made only where it is named, and apart.
    """

    app: str = ""
    label: str = ""
    random: bool = False
    at: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cell(Setting):
    """One seed of one cell: the setting that makes it, and where in a table it belongs."""

    table: str
    row: str
    column: str
    app: str
    profile: str
    protocol: str
    seed: int

    @property
    def trained(self) -> bool:
        """Whether it takes a trained model: what one costs does not."""
        return self.source != "efficiency"


@dataclass(frozen=True)
class Reference:
    """The paper's table of p-values, and the row that every other row is tested against."""

    table: str
    row: str


@dataclass(frozen=True)
class TableSpec:
    """A paper's table as this repository makes it, to at least `digits` decimals.

    `default` is refined by the row, then by the column, then by the row's `at`. `extra` are rows
    that the paper does not have; `remark` says how our settings differ from the paper's.
    """

    table: str
    app: str
    default: Setting
    columns: Mapping[str, Setting]
    rows: Mapping[str, Row]
    protocols: Mapping[str, tuple[str, ...]]
    extra: Mapping[str, Row] = field(default_factory=dict)
    significance: Reference | None = None
    remark: str = ""
    digits: int = 2

    @property
    def made(self) -> dict[str, Row]:
        """Every row that can be run."""
        return {**self.rows, **self.extra}

    def labels(self, paper: PaperTable) -> dict[str, str]:
        """Every row in the order of the table, the paper's first, with what the reader calls it."""
        return {**paper.labels, **{key: row.label for key, row in self.extra.items()}}

    def decimals(self, paper: PaperTable) -> dict[str, int]:
        """How many decimals each column has: those of the paper, and never fewer than ours."""
        return {key: max(self.digits, column.digits) for key, column in paper.columns.items()}

    def setting(self, row: str, column: str) -> Setting:
        """Return what makes a cell."""
        chosen = self.made[row]
        parts = chosen, self.columns[column], chosen.at.get(column, Setting())
        return reduce(Setting.refined, parts, self.default)

    def cells(
        self,
        profile: str,
        protocol: str,
        seeds: Iterable[int],
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Cell]:
        """List the cells, a whole table for the first seed before the next seed begins.

        What a model costs has no seed: such cells are listed for the first one alone. Raises a
        `UserError` that lists the allowed names if a row, column or protocol has another.
        """
        check(protocol, self.protocols, f"protocol of {self.table}")
        made, seeds = self.made, list(seeds)
        chosen_rows = [check(r, made, f"row of {self.table} to run") for r in rows or made]
        chosen_columns = [
            check(c, self.columns, f"column of {self.table}") for c in columns or self.columns
        ]
        cells = []
        for seed, row, column in product(seeds, chosen_rows, chosen_columns):
            setting = self.setting(row, column)
            if setting.source == "efficiency" and seed != seeds[0]:
                continue
            run: dict[str, Any] = {**vars(setting), "args": setting.args + self.protocols[protocol]}
            cells.append(
                Cell(
                    **run, table=self.table, row=row, column=column,
                    app=made[row].app or self.app, profile=profile, protocol=protocol, seed=seed,
                )
            )  # fmt: skip
        return cells
