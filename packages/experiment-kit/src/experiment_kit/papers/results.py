"""Results of a table, one line a run; a cell is a group of lines."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean

import pandas as pd
import yaml

from experiment_kit.errors import UserError
from experiment_kit.papers.spec import Cell, TableSpec
from experiment_kit.papers.values import PaperTable, check_name
from experiment_kit.run import write_atomically

CELL = ["table", "row", "column", "profile", "protocol"]
SETTING = ["profile", "protocol"]
EXTRA_DECIMALS = 2  # of the value of a run, so that the mean can be computed from the file
RANDOM = "random"


@dataclass(frozen=True)
class Measurement:
    """The value that a finished run has for a cell, in the paper's unit.

    `run` is the hash of its config, `commit` that of the code that ran; `weights_source` says where
    training started, "random" or "pretrained: <name>", where rows of a table differ in it.
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
        """Mean, sample standard deviation and count of every cell, the paper's averages too."""
        cells = self.runs.groupby(CELL, sort=False)["value"]
        found = cells.agg(mean=fmean, std="std", count="count").reset_index()
        averages = [
            {**dict(zip(SETTING, setting, strict=True)), "row": row, "column": column, **average}
            for setting in self.settings
            for row in self.spec.labels(self.paper)
            for column in self.paper.averages
            if (average := self._average(row, column, *setting))
        ]
        found = pd.concat([found, pd.DataFrame(averages)], ignore_index=True)
        decimals = self.spec.decimals(self.paper)
        for name in ("mean", "std"):
            found[name] = [
                round(v, decimals[c]) for v, c in zip(found[name], found["column"], strict=True)
            ]
        return found

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

    Raises a UserError if the run finished without the metric of the cell.
    """
    experiment = cell.experiment
    path = folder / f"{experiment.source}.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if cell.metric not in (metrics := content["metrics"]):
        raise UserError(
            f"{path} has no metric {cell.metric}, which {cell.table} needs; it has "
            f"{', '.join(metrics) or 'none'}."
        )
    return Measurement(
        **{name: getattr(cell, name) for name in ("table", "row", "column", "protocol")},
        profile=experiment.profile,
        seed=experiment.seed if experiment.is_trained else 0,  # the cost of a model has no seed
        value=metrics[cell.metric] * cell.scale,
        run=folder.name.rpartition("-")[2],
        commit=_read_commit(folder, content),
        # older runs call it origin
        weights_source=content.get("weights_source", content.get("origin", "")),
    )


def _read_commit(folder: Path, content: Mapping[str, dict[str, str]]) -> str:
    starts = [content.get("environment", {})]
    if not starts[0] and (path := folder / "environment.yaml").is_file():
        starts = yaml.safe_load(path.read_text(encoding="utf-8"))
    commit, modified = starts[-1].get("commit"), starts[-1].get("modified")
    return f"{commit[:10]}{'-modified' if modified else ''}" if commit else "unknown"


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
    """Return the lines of both in the order of the table; of a repeated seed the new one counts.

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


def read_results(path: Path) -> pd.DataFrame:
    """Read the lines of a table that was published before; none if there is no file.

    Raises a UserError if the file is not such a table.
    """
    if not path.is_file():
        return _set_types(pd.DataFrame(columns=COLUMNS))
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    if [*frame.columns] != COLUMNS:
        found = ", ".join(frame.columns)
        raise UserError(f"{path} has columns {found}; expected {', '.join(COLUMNS)}.")
    try:
        return _set_types(frame)
    except ValueError as error:
        raise UserError(f"{path}: seed or value is not a number: {error}.") from error


def write_results(path: Path, results: TableResults) -> None:
    """Write the lines of a table, the whole file or nothing."""
    decimals = results.spec.decimals(results.paper)
    values = [
        f"{value:.{decimals[column] + EXTRA_DECIMALS}f}"
        for value, column in zip(results.runs["value"], results.runs["column"], strict=True)
    ]
    lines = results.runs.assign(value=values)
    write_atomically(path, lines.to_csv(index=False, lineterminator="\n"))


def _set_types(frame: pd.DataFrame) -> pd.DataFrame:
    texts = dict.fromkeys(COLUMNS, str)
    return frame.astype({**texts, "seed": int, "value": float})
