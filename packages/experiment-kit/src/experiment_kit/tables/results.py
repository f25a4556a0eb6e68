"""Results of runs joined with the printed values, in long form: one line per cell of the table."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import pandas as pd

from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically
from experiment_kit.tables.names import check
from experiment_kit.tables.origin import check_unmixed, joined
from experiment_kit.tables.paper import PaperTable
from experiment_kit.tables.seeds import Record, check_seeds, laid, summary, written
from experiment_kit.tables.spec import Cell, TableSpec

KEY = ["table", "row", "column", "profile", "protocol"]
NUMBERS = ["mean", "std", "paper"]
ALL = [*KEY, "seeds", "values", *NUMBERS, "run", "origin"]
OPTIONAL = ("values", "origin")  # each is left out of a file where nothing has one
COLUMNS = [name for name in ALL if name not in OPTIONAL]


@dataclass(frozen=True)
class Measurement:
    """What one finished run measured, in the paper's unit; `run` is its folder as written."""

    row: str
    column: str
    profile: str
    protocol: str
    seed: int
    value: float
    run: str
    origin: str = ""


def measure(cell: Cell, run: Path | str) -> Measurement | None:
    """Read what a cell shows from its run, or nothing if that has not been measured.

    Raises a `UserError` if the run finished without the metric of the cell.
    """
    result = Path(run) / f"{cell.source}.json"
    if not result.is_file():
        return None
    content = json.loads(result.read_text(encoding="utf-8"))
    metrics = content["metrics"]
    if cell.metric not in metrics:
        had = ", ".join(metrics) or "none"
        raise UserError(
            f"{result} has no metric {cell.metric}, which {cell.table} needs; it has {had}."
        )
    value, where = metrics[cell.metric] * cell.scale, _relative(Path(run)).as_posix()
    seed = cell.seed if cell.trained else 0  # of what a model costs there are no seeds to unite
    place = cell.row, cell.column, cell.profile, cell.protocol, seed
    return Measurement(*place, value, where, content.get("origin", ""))


def aggregate(
    spec: TableSpec, paper: PaperTable, measurements: Iterable[Measurement]
) -> pd.DataFrame:
    """Make every cell of the table for each profile and protocol that has a measurement.

    A cell without a run has neither mean nor deviation. Raises a `UserError` if a measurement is of
    no row or column of the table.
    """
    cells: dict[tuple[str, ...], dict[int, Measurement]] = defaultdict(dict)
    rows, columns = spec.labels(paper), paper.shown
    for m in measurements:
        check(m.row, rows, f"row of {spec.table}")
        check(m.column, spec.columns, f"column of {spec.table} to measure")
        cells[m.row, m.column, m.profile, m.protocol][m.seed] = m
    settings = sorted({key[2:] for key in cells})
    records = [
        _record(spec, paper, (row, column, *setting), cells.get((row, column, *setting), {}))
        for setting, row, column in product(settings, rows, columns)
    ]
    return arrange(_frame(records), spec, paper)


def merge(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Lay new measurements over old ones, seed by seed, as `laid` does for each cell."""
    merged = {tuple(record[k] for k in KEY): record for record in old.to_dict("records")}
    for record in new.to_dict("records"):
        key = tuple(record[k] for k in KEY)
        if key not in merged or not math.isnan(record["mean"]):
            merged[key] = laid(record, merged[key]) if key in merged else record
    return _frame(merged.values())


def arrange(frame: pd.DataFrame, spec: TableSpec, paper: PaperTable) -> pd.DataFrame:
    """Put the cells in the order of the table, and average them as written.

    Raises a `UserError` where some are of random weights and others of pretrained ones.
    """
    rows, columns, decimals = [*spec.labels(paper)], [*paper.shown], spec.decimals(paper)

    def place(record: Record) -> tuple[object, ...]:
        row, column = record["row"], record["column"]
        setting = record["table"], record["profile"], record["protocol"]
        return *setting, _rank(rows, row), row, _rank(columns, column), column

    records = sorted(frame.to_dict("records"), key=place)
    check_unmixed(records)
    by_key = {tuple(record[k] for k in KEY): record for record in records}
    for (table, row, column, *setting), record in by_key.items():
        if column in paper.averages:
            parts = (by_key.get((table, row, c, *setting)) for c in paper.columns[column].over)
            record.update(_average(list(parts), decimals[column]))
    return _frame(records)


def read_csv(path: Path) -> pd.DataFrame:
    """Read a table that was written before; no file reads as no cells.

    Raises a `UserError` if the file is not such a table.
    """
    if not path.is_file():
        return _frame([])
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    if [*frame.columns] != [name for name in ALL if name in {*COLUMNS, *frame.columns}]:
        columns = ", ".join(frame.columns)
        raise UserError(f"{path} has columns {columns}; expected {', '.join(ALL)}.")
    records = frame.assign(**{**dict.fromkeys(OPTIONAL, ""), **frame}).to_dict("records")
    try:
        check_seeds(records)
        return _frame(records)
    except ValueError as error:
        raise UserError(f"{path} holds something that is not a number: {error}.") from error


def write_csv(path: Path, frame: pd.DataFrame, decimals: Mapping[str, int]) -> None:
    """Write a table whole or not at all, so that the same results make the same file."""
    kept = [name for name in ALL if name not in OPTIONAL or frame[name].any()]
    texts = frame[kept].astype(dict.fromkeys(NUMBERS, object))
    for name in NUMBERS:
        texts[name] = [
            "" if math.isnan(value) else f"{value:.{decimals.get(column, 2)}f}"
            for column, value in zip(frame["column"], frame[name], strict=True)
        ]
    write_atomically(path, texts.to_csv(index=False, lineterminator="\n"))


def _relative(run: Path) -> Path:
    here = Path.cwd()  # where commands run: the table must read the same on another machine
    return run.relative_to(here) if run.is_relative_to(here) else run


def _rank(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _record(
    spec: TableSpec, paper: PaperTable, key: tuple[str, ...], seeds: Mapping[int, Measurement]
) -> Record:
    found = [seeds[seed] for seed in sorted(seeds)]
    values = written((m.value for m in found), spec.decimals(paper)[key[1]])
    return {
        **dict(zip(KEY, (spec.table, *key), strict=True)),
        "seeds": " ".join(str(m.seed) for m in found),
        "values": values,
        **summary(values),
        "paper": paper.value(*key[:2]),
        "run": " ".join(m.run for m in found),
        "origin": joined(m.origin for m in found),
    }


def _average(parts: list[Record | None], digits: int) -> Record:
    # a column that was not run, or a table of before values were kept, has none of any seed
    found = [
        dict(zip(part["seeds"].split(), part["values"].split(), strict=False)) if part else {}
        for part in parts
    ]
    seeds = sorted(set.intersection(*map(set, found)), key=int)
    if not seeds:
        return {"seeds": "", "mean": math.nan, "std": math.nan}
    alike = [summary(" ".join(values[seed] for seed in seeds)) for values in found]
    # Runs on different data are independent, so the variances of their means add.
    std = math.hypot(*(cell["std"] for cell in alike)) / len(alike)
    return {
        "seeds": " ".join(seeds),
        "mean": round(fmean(cell["mean"] for cell in alike), digits),
        "std": round(std, digits),
    }


def _frame(records: Iterable[Record]) -> pd.DataFrame:
    frame = pd.DataFrame(list(records), columns=ALL)
    texts = [name for name in ALL if name not in NUMBERS]
    frame[NUMBERS] = frame[NUMBERS].apply(pd.to_numeric).astype(float)
    return frame.astype(dict.fromkeys(texts, str))
