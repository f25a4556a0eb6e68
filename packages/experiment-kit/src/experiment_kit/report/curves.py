"""What a run left behind to draw: scalars by step, the spectral profile, and its result."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

Scalars = dict[str, pd.Series]


@dataclass(frozen=True)
class Run:
    """One finished run of a row of the table; what it did not write is empty."""

    row: str
    result: dict[str, Any]
    scalars: Scalars
    spectral: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)


def read(row: str, folder: Path) -> Run | None:
    """Read a run folder, or nothing if the run has not finished."""
    result = _json(folder / "result.json")
    if not result:
        return None
    config = folder / "config.yaml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
    return Run(row, result, scalars(folder), _json(folder / "spectral.json"), settings)


def scalars(folder: Path) -> Scalars:
    """Read every scalar of `<folder>/tensorboard` as a series over steps.

    A resumed run has several event files whose steps overlap: what was written last counts.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written: dict[str, list[tuple[float, int, float]]] = {}
    for file in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            written.setdefault(tag, []).extend(
                (event.wall_time, event.step, event.value) for event in events.Scalars(tag)
            )
    return {tag: _last(events) for tag, events in written.items()}


def over_seeds(series: Sequence[pd.Series]) -> pd.DataFrame:
    """Return mean, lowest and highest of the seeds at the steps that all of them reached.

    >>> over_seeds([pd.Series({1: 0.0, 2: 4.0, 3: 5.0}), pd.Series({1: 2.0, 2: 4.0})])
       mean  low  high
    1   1.0  0.0   2.0
    2   4.0  4.0   4.0
    """
    joined = pd.concat(series, axis=1, join="inner").sort_index()
    return pd.DataFrame(
        {"mean": joined.mean(axis=1), "low": joined.min(axis=1), "high": joined.max(axis=1)}
    )


def _last(events: Iterable[tuple[float, int, float]]) -> pd.Series:
    values = {step: value for _, step, value in sorted(events, key=lambda event: event[0])}
    return pd.Series(values, dtype=float).sort_index()


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
