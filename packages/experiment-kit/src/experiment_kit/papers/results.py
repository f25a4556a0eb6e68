"""Results of a table, one line a run; a cell is a group of lines."""

import csv
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from experiment_kit.environment import PACKAGES
from experiment_kit.errors import UserError
from experiment_kit.launch.options import has_options
from experiment_kit.papers.spec import Cell, TableSpec
from experiment_kit.papers.values import PaperTable, check_name
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import (
    is_finite,
    read_report,
    read_starts,
    try_read,
    warn_once,
)

_VERSIONS = ("python", *PACKAGES)
CELL = ["table", "row", "column", "profile", "protocol"]
SETTING = ["profile", "protocol"]
EXTRA_DECIMALS = 2  # of the value of a run, so that the mean can be computed from the file
RANDOM = "random"


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


COLUMNS = [field.name for field in fields(Measurement)]


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

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Mean, sample standard deviation and count of every cell, also of computed ones."""
        cells = self.runs.groupby(CELL, sort=False)["value"]
        found = cells.agg(mean=fmean, std="std", count="count").reset_index()
        averages = [
            {**dict(zip(SETTING, setting, strict=True)), "row": row, "column": column, **average}
            for setting in self.settings
            for row in self.spec.labels(self.paper)
            for column in self.paper.averages
            if (average := self._average(row, column, *setting))
        ]
        computed = [
            {**dict(zip(SETTING, setting, strict=True)), "row": row, "column": column, **value}
            for setting in self.settings
            for row, column in self._list_computed()
            if (value := self._compute_cell(row, column, *setting))
        ]
        found = pd.concat([found, pd.DataFrame([*averages, *computed])], ignore_index=True)
        decimals = self.spec.decimals(self.paper)
        for name in ("mean", "std"):
            found[name] = [
                round(v, decimals[c]) for v, c in zip(found[name], found["column"], strict=True)
            ]
        return found

    def select_runs(self, row: str, column: str, profile: str, protocol: str) -> pd.DataFrame:
        """Return the lines that a cell is made of, also of an average or another computed cell."""
        runs = select_setting(self.runs, profile, protocol)
        computed = self.spec.computed.get(column)
        rows = {row, computed.minus.get(row)} if computed else {row}
        over = {*self.paper.columns[column].over} if column in self.paper.averages else {column}
        columns = {computed.column} if computed else over
        return runs[runs["row"].isin(rows) & runs["column"].isin(columns)]

    def _list_computed(self) -> list[tuple[str, str]]:
        """List the rows and columns that are computed: those that the paper prints."""
        return [
            (row.key, column)
            for column, computed in self.spec.computed.items()
            for row in self.paper.rows
            if row.values.get(column) is not None
            if not computed.minus or row.key in computed.minus
        ]

    def _compute_cell(
        self, row: str, column: str, profile: str, protocol: str
    ) -> dict[str, float] | None:
        """Return a value, or the mean difference over the seeds that both rows have."""
        computed = self.spec.computed[column]
        runs = select_setting(self.runs, profile, protocol)
        values = runs[runs["column"] == computed.column].pivot(
            index="seed", columns="row", values="value"
        )
        rows = [row, *filter(None, [computed.minus.get(row)])]
        alike = values.reindex(columns=rows).dropna()
        if alike.empty:
            return None
        found = alike[rows[0]] - (alike[rows[1]] if rows[1:] else 0.0)
        return {"mean": fmean(found), "std": found.std(), "count": len(found)}

    def _average(
        self, row: str, column: str, profile: str, protocol: str
    ) -> dict[str, float] | None:
        over = list(self.paper.columns[column].over)
        runs = select_setting(self.runs[self.runs["row"] == row], profile, protocol)
        wide = runs.pivot(index="seed", columns="column", values="value").reindex(columns=over)
        alike = wide.dropna()  # seeds that every column has
        if alike.empty:
            return None
        # runs on different data are independent, so that the variances of their means add
        std = math.hypot(*alike.std()) / len(over)
        return {"mean": fmean(alike.mean()), "std": std, "count": len(alike)}


def select_setting(frame: pd.DataFrame, profile: str, protocol: str) -> pd.DataFrame:
    """Return the lines of one profile and protocol."""
    return frame[(frame["profile"] == profile) & (frame["protocol"] == protocol)]


def read_measurement(cell: Cell, folder: Path) -> Measurement | None:
    """Read the value of a cell from the folder of its run; None if it has not been measured.

    Raises a UserError, with the remedy, if the file is damaged or of another run, or has no finite
    number as the metric of the cell.
    """
    experiment = cell.experiment
    profile = experiment.profile or "paper"
    content = read_report(folder, experiment.source, profile=profile)
    if content is None:
        return None
    path, metrics = folder / f"{experiment.source}.json", content["metrics"]
    if cell.metric not in metrics:
        raise UserError(
            f"{path} has no metric {cell.metric}, which {cell.table} needs; it has "
            f"{', '.join(metrics) or 'none'}."
        )
    if not has_options(content, experiment.eigenvalues):
        raise UserError(
            f"{path} was measured with other --samples or --epoch: its cell is left out"
        )
    value = metrics[cell.metric]
    if not is_finite(value) or not is_finite(value := value * cell.scale):
        raise UserError(f"{path} has no finite {cell.metric}: its cell is left out")
    code = _read_code(folder, content)
    commit, modified = code.get("commit"), code.get("modified")
    return Measurement(
        **{name: getattr(cell, name) for name in ("table", "row", "column", "protocol")},
        profile=experiment.profile,
        seed=experiment.seed if experiment.is_trained else 0,  # the cost of a model has no seed
        value=value,
        run=Run(folder).hash,
        commit=f"{str(commit)[:10]}{'-modified' if modified else ''}" if commit else "unknown",
        # older runs call it origin
        weights_source=str(content.get("weights_source", content.get("origin", ""))),
        versions=_format_versions(code),
    )


def _read_code(folder: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return commit and versions of a measurement; older results have them in another file."""
    code = content.get("environment")
    if not code:
        code = [{}, *(try_read(read_starts, folder) or ())][-1]
    return code if isinstance(code, dict) else {}


def _format_versions(code: Mapping[str, Any]) -> str:
    versions = code.get("versions")
    known = {"python": code.get("python"), **(versions if isinstance(versions, dict) else {})}
    return "; ".join(f"{name} {known[name]}" for name in _VERSIONS if known.get(name))


def collect_results(
    measurements: Iterable[Measurement], spec: TableSpec, paper: PaperTable
) -> pd.DataFrame:
    """Make lines of measurements, their values rounded as they are written.

    Raises a UserError if one is of no row or column of the table.
    """
    frame = _set_types(pd.DataFrame([vars(m) for m in measurements], columns=COLUMNS))
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
    """Return the lines of both in the order of the table.

    Later lines replace earlier ones with the same seed.

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
    """Refuse random and pretrained weights in one table and profile, which a reader would compare.

    Raises a UserError that names them.
    """
    sources = frame[frame["weights_source"] != ""]
    for (table, profile), group in sources.groupby(["table", "profile"])["weights_source"]:
        if (group == RANDOM).nunique() > 1:
            raise UserError(
                f"{table}, profile {profile}, would mix random and pretrained weights: make one of "
                "them (--rows) and publish it into another folder (OUT), or remove the lines of "
                "the other from the table's csv."
            )


def read_results(path: Path, paper: PaperTable | None = None) -> pd.DataFrame:
    """Read the lines of a table that was published before; none if there is no file.

    A damaged line, or one that is of no cell of `paper`, is left out with a warning, and the whole
    file is then kept beside it as `<path>.bad`. Raises a UserError if the path is a folder.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no file: move it away, as the table's results go there")
    found: list[dict[str, Any]] = []
    problems = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file, strict=True)
            head = _check_head(next(lines, []))
            for cells in filter(None, lines):
                try:
                    found.append(_parse_line(head, cells, paper))
                except ValueError as error:
                    problems.append(f"line {lines.line_num} is left out ({error})")
    except FileNotFoundError:
        pass
    except (ValueError, csv.Error) as error:
        problems.append(f"it cannot be read to its end ({error})")
    keep_damaged(path, problems)
    return _set_types(pd.DataFrame(found, columns=COLUMNS))


def keep_damaged(path: Path, problems: list[str]) -> None:
    """Copy a file of results with problems to `<path>.bad`, and warn of them once."""
    if problems:
        shutil.copyfile(path, f"{path}.bad")
        more = f" and {len(problems) - 1} more" if problems[1:] else ""
        warn_once(f"{path}: {problems[0]}{more}: correct {path.name}.bad, which is its copy, "
                  f"rename it to {path.name}, and make the table again")  # fmt: skip


def _check_head(head: list[str]) -> list[str]:
    if head not in (COLUMNS, COLUMNS[:-1]):  # older files have no versions
        raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
    return head


def _parse_line(
    head: Sequence[str], cells: Sequence[str], paper: PaperTable | None
) -> dict[str, Any]:
    """Return a line with its numbers; raises ValueError for one that is of no cell."""
    if len(cells) != len(head):
        raise ValueError(f"{len(cells)} cells, not {len(head)}")
    line = dict(zip(head, cells, strict=True))
    parsed = {"versions": "", **line, "seed": int(line["seed"]), "value": float(line["value"])}
    if not is_finite(parsed["value"]):
        raise ValueError(f"value {line['value']} is not finite")
    if paper and (line["table"] != paper.id or line["column"] not in paper.columns):
        raise ValueError(f"{paper.id} has no such column")
    return parsed


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


def _set_types(frame: pd.DataFrame) -> pd.DataFrame:
    texts = dict.fromkeys(COLUMNS, str)
    return frame.astype({**texts, "seed": int, "value": float})
