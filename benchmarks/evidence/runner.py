"""Measurements that are made once: each is kept in a file of its own until it is deleted."""

import csv
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.run_files import write_atomically
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Row = dict[str, Any]
Unit = dict[str, Any]  # seconds, rows
Measure = Callable[..., list[Row]]


def show_progress() -> Progress:
    """Return a progress display with one line a part."""
    return Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


def name_unit(arguments: Mapping[str, Any]) -> str:
    """Return the name of a measurement's file: ten digits over all that can change the result.

    >>> name_unit({"seed": 0}) == name_unit({"seed": 1})
    False
    """
    text = json.dumps(arguments, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def read_unit(path: Path) -> Unit | None:
    """Return a finished measurement, None where its file is absent or damaged."""
    try:
        unit = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return unit if isinstance(unit, dict) and {"seconds", "rows"} <= set(unit) else None


def measure_once(measure: Measure, arguments: Mapping[str, Any], path: Path) -> Unit:
    """Measure, and write the rows and their CPU time as a whole."""
    torch.set_num_threads(1)
    began = time.process_time()
    rows = measure(**arguments)
    unit = {"seconds": round(time.process_time() - began, 3), "rows": rows}
    write_atomically(path, json.dumps(unit) + "\n")
    return unit


def run_units(
    measure: Measure,
    units: Sequence[Mapping[str, Any]],
    folder: Path,
    pool: ProcessPoolExecutor | None,
    progress: Progress,
) -> tuple[list[Row], float]:
    """Make the measurements that are missing; return all rows in order, and their CPU seconds."""
    paths = [folder / f"{name_unit(arguments)}.json" for arguments in units]
    found = [read_unit(path) for path in paths]
    calls = {
        index: (measure, units[index], paths[index])
        for index, unit in enumerate(found)
        if unit is None
    }
    done = len(units) - len(calls)
    task = progress.add_task(folder.name, total=len(units), completed=done)
    for index, unit in make_calls(calls, pool):
        found[index] = unit
        progress.advance(task)
    whole = [unit for unit in found if unit is not None]
    rows = [row for unit in whole for row in unit["rows"]]
    return rows, sum(unit["seconds"] for unit in whole)


def make_calls(
    calls: Mapping[int, tuple[Any, ...]], pool: ProcessPoolExecutor | None
) -> Iterator[tuple[int, Unit]]:
    """Yield the result of each call to `measure_once`, as they end in the pool or one by one."""
    if pool is None:
        yield from ((index, measure_once(*call)) for index, call in calls.items())
        return
    pending = {pool.submit(measure_once, *call): index for index, call in calls.items()}
    yield from ((pending[future], future.result()) for future in as_completed(pending))


def format_csv(rows: Sequence[Row]) -> str:
    """Format rows as CSV: four significant digits, empty where there is no value.

    >>> print(format_csv([{"a": 0.123456, "b": None, "c": "x, y"}]), end="")
    a,b,c
    0.1235,,"x, y"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([rows[0], *(map(format_value, row.values()) for row in rows)])
    return text.getvalue()


def format_value(value: Any) -> str:
    """Format one value of a table."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the half width of its 95 % interval by Student's t.

    >>> mean_interval([1.0, 3.0])
    (2.0, 12.706...)
    """
    estimate = MeanDeviation.from_values(values)
    return estimate.mean, estimate.half_width if len(values) > 1 else math.nan
