"""Results of a table, one line a run; a cell is a group of lines."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Self

import pandas as pd

from experiment_kit.data.csv_files import read_csv_table
from experiment_kit.environment import PACKAGES
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.cells import CellResult, explain_incomparable
from experiment_kit.papers.spec import Cell, TableSpec, find_spec
from experiment_kit.papers.values import PaperTable, check_name, load_table
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import is_finite, read_report

_VERSIONS = ("python", *PACKAGES)
CELL = ["table", "row", "column", "profile", "protocol"]
SETTING = ["profile", "protocol"]
EXTRA_DECIMALS = 2  # for a run, so that the mean can be computed from the file
RANDOM, CITED = "random", "cited"


@dataclass(frozen=True)
class Measurement:
    """The value that a finished run has for a cell, in the paper's unit.

    `run` is the hash of its config, `commit` that of the code that ran; `weights_source` says where
    training started, "random" or "pretrained: <name>", where rows of a table differ in it;
    `versions` are those of Python, torch, Lightning and this repository's packages.
    """

    table: str
    row: str
    column: str
    profile: str
    protocol: str
    seed: int
    value: float
    run: str
    commit: str = "unknown"
    weights_source: str = ""
    versions: str = ""

    @classmethod
    def from_cell(cls, cell: Cell, value: float, **details: str) -> Self:
        """Return a measurement of a cell; the cost of a model has seed 0."""
        seed = cell.experiment.seed if cell.experiment.is_trained else 0
        place = cell.table, cell.row, cell.column, cell.experiment.profile, cell.protocol
        return cls(*place, seed, value, **details)


COLUMNS = [field.name for field in fields(Measurement)]
TYPES = {**dict.fromkeys(COLUMNS, str), "seed": int, "value": float}


@dataclass(frozen=True)
class TableResults:
    """The runs of a table in its order, beside how it is made and what the paper prints."""

    spec: TableSpec
    paper: PaperTable
    runs: pd.DataFrame

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The profiles and protocols that have runs."""
        return sorted(set(self.runs[SETTING].itertuples(index=False, name=None)))

    def select_runs(self, profile: str, protocol: str) -> pd.DataFrame:
        """Return the lines of one profile and protocol."""
        runs = self.runs
        return runs[(runs["profile"] == profile) & (runs["protocol"] == protocol)]

    def list_cells(self, profile: str, protocol: str) -> list[CellResult]:
        """List all cells of the table under a profile and a protocol, row by row."""
        groups = self.select_runs(profile, protocol).groupby(["row", "column"])
        runs = {place: group.set_index("seed") for place, group in groups}
        paper, decimals, cells = self.paper, self.spec.decimals(self.paper), []
        for row, key in product(self.spec.labels(paper), paper.measurable):
            cell = CellResult(paper, row, key, decimals[key])
            parts = [runs.get(place) for place in self._list_parts(cell)]
            measured = [part for part in parts if part is not None]
            if measured and len(measured) == len(parts):
                is_random = any((part["weights_source"] == RANDOM).any() for part in measured)
                values = [part["value"] for part in measured]
                estimate = _estimate_cell(values, is_difference=key in self.spec.computed)
                reason = explain_incomparable(profile, protocol, is_random)
                cell = replace(cell, estimate=estimate, incomparable=reason)
            elif row in self.spec.cited and cell.printed_value is not None:
                cell = replace(cell, absent=CITED)
            cells.append(cell)
        return cells

    def list_means(self, profile: str, protocol: str) -> dict[tuple[str, str], float]:
        """Return the mean of each measured cell by row and column, as it is shown."""
        cells = self.list_cells(profile, protocol)
        return {(c.row, c.key): round(c.estimate.mean, c.digits) for c in cells if c.estimate}

    def _list_parts(self, cell: CellResult) -> list[tuple[str, str]]:
        """Return the measured cells that a cell is made of, most of them of themselves alone.

        An average is made of columns, and a computed cell, where the paper prints one, of another
        column, less its value in another row.
        """
        if (computed := self.spec.computed.get(cell.key)) is None:
            columns = self.paper.columns[cell.key].over or (cell.key,)
            return [(cell.row, column) for column in columns]
        minus = [computed.minus[cell.row]] if cell.row in computed.minus else []
        is_made = cell.printed_value is not None and (minus or not computed.minus)
        return [(row, computed.column) for row in (cell.row, *minus) if is_made]


def _estimate_cell(parts: Sequence[pd.Series], is_difference: bool) -> MeanDeviation | None:
    """Summarize the seeds that all parts have: the mean of columns, or the difference of rows."""
    seeds = pd.concat(parts, axis=1, join="inner")
    if seeds.empty:
        return None
    if is_difference or len(parts) == 1:
        first, *others = (seeds.iloc[:, i] for i in range(len(parts)))
        return MeanDeviation.from_values((first - sum(others)).to_list())
    # runs on different data are independent, so that the variances of their means add
    return MeanDeviation(fmean(seeds.mean()), math.hypot(*seeds.std()) / len(parts), len(seeds))


def read_measurement(cell: Cell, folder: Path) -> Measurement | None:
    """Read the value of a cell from the folder of its run; None if it has not been measured.

    Raises a UserError, with the remedy, if the file is damaged or of another run, or has no finite
    number as the metric of the cell.
    """
    experiment = cell.experiment
    content = read_report(folder, experiment.source, profile=experiment.profile or "paper")
    if content is None:
        return None
    path, metrics = folder / f"{experiment.source}.json", content["metrics"]
    if not experiment.is_measured_by(content):
        raise UserError(f"{path} was measured with other --samples or --epoch than its cell")
    if not is_finite(value := metrics.get(cell.metric)):
        found = ", ".join(metrics) or "none"
        raise UserError(f"{path} has no finite {cell.metric} for {cell.table}; it has {found}")
    code = content.get("environment") or {}
    commit, modified = code.get("commit"), code.get("modified")
    known = {"python": code.get("python"), **code.get("versions", {})}
    return Measurement.from_cell(
        cell,
        value * cell.scale,
        run=Run(folder).hash,
        commit=f"{str(commit)[:10]}{'-modified' if modified else ''}" if commit else "unknown",
        weights_source=str(content.get("weights_source", "")),
        versions="; ".join(f"{name} {known[name]}" for name in _VERSIONS if known.get(name)),
    )


def collect_results(
    measurements: Iterable[Measurement], spec: TableSpec, paper: PaperTable
) -> pd.DataFrame:
    """Make lines of measurements, their values rounded as they are written."""
    frame = pd.DataFrame([vars(m) for m in measurements], columns=COLUMNS).astype(TYPES)
    for row, column in zip(frame["row"], frame["column"], strict=True):
        check_name(row, spec.labels(paper), f"row of {spec.table}")
        check_name(column, spec.columns, f"column of {spec.table} to measure")
    decimals = spec.decimals(paper)
    frame["value"] = [
        round(value, decimals[column] + EXTRA_DECIMALS)
        for value, column in zip(frame["value"], frame["column"], strict=True)
    ]
    return frame


def merge_results(
    old: pd.DataFrame, new: pd.DataFrame, spec: TableSpec, paper: PaperTable
) -> pd.DataFrame:
    """Return the lines of both in the order of the table; the later one of a seed counts.

    Raises a UserError where they mix random and pretrained weights.
    """
    frame = pd.concat([old, new]).drop_duplicates([*CELL, "seed"], keep="last")
    check_no_mixed_weights(frame)
    ranks = {
        "row": {name: i for i, name in enumerate(spec.labels(paper))},
        "column": {name: i for i, name in enumerate(paper.columns)},
    }

    def rank(names: pd.Series) -> pd.Series:
        return names.map(ranks[names.name]) if names.name in ranks else names

    by = ["table", *SETTING, "row", "column", "seed"]  # rows that the spec lacks come last
    return frame.sort_values(by, key=rank, kind="stable", ignore_index=True)


def check_no_mixed_weights(frame: pd.DataFrame) -> None:
    """Raise UserError for random and pretrained weights in one table, which readers compare."""
    sources = frame[frame["weights_source"] != ""]
    for (table, profile), group in sources.groupby(["table", "profile"])["weights_source"]:
        if (group == RANDOM).nunique() > 1:
            raise UserError(
                f"{table}, profile {profile}, would mix random and pretrained weights: publish one "
                "of them (--rows) into another folder (OUT), or remove its lines from the csv."
            )


def read_results(path: Path, paper: PaperTable | None = None) -> pd.DataFrame:
    """Read the lines of a table that was published before; none if there is no file."""
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS).astype(TYPES)
    (_, names), *rows = read_csv_table(path)
    frame = pd.DataFrame([cells for _, cells in rows], columns=names)
    if "versions" not in frame:
        frame["versions"] = ""
    with convert_user_errors(KeyError, prefix=f"{path} cannot be read: "):
        frame = frame[COLUMNS]
    right = pd.to_numeric(frame["value"], errors="coerce").map(is_finite)
    right &= frame["seed"].str.fullmatch(r"\d{1,18}")
    if paper:
        right &= (frame["table"] == paper.id) & frame["column"].isin([*paper.columns])
    if not right.all():
        line = rows[int(right.idxmin())][0]
        raise UserError(f"{path}, line {line}, has no seed and finite value: correct it")
    return frame.astype(TYPES)


def open_results(folder: Path, table: str) -> TableResults:
    """Read a table from a folder of published results; without a file it has no runs."""
    paper = load_table(table)
    return TableResults(find_spec(table), paper, read_results(folder / f"{table}.csv", paper))


def write_results(path: Path, results: TableResults) -> None:
    """Write the lines of a table, the whole file or nothing; without versions if none is known."""
    decimals = results.spec.decimals(results.paper)
    values = [
        f"{value:.{decimals[column] + EXTRA_DECIMALS}f}"
        for value, column in zip(results.runs["value"], results.runs["column"], strict=True)
    ]
    lines = results.runs.assign(value=values)
    columns = COLUMNS if lines["versions"].any() else COLUMNS[:-1]
    write_atomically(path, lines.to_csv(index=False, lineterminator="\n", columns=columns))
