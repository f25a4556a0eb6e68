"""The files that a finished run leaves: its result, scalars by step, and spectral measures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml


@dataclass(frozen=True)
class RunRecord:
    """One finished run of a method or a row; files that it did not write are empty here."""

    label: str
    result: dict[str, Any]
    scalars: dict[str, pd.Series] = field(default_factory=dict)
    spectral: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def read_record(label: str, folder: Path) -> RunRecord | None:
    """Read the folder of a run; None if the run has not finished."""
    result = _read_json(folder / "result.json")
    if not result:
        return None
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    spectral = _read_json(folder / "spectral.json")
    return RunRecord(label, result, read_scalars(folder), spectral, config)


def read_scalars(folder: Path) -> dict[str, pd.Series]:
    """Read every scalar of `<folder>/tensorboard` as a series over steps.

    A resumed run has several event files whose steps overlap: the last value written counts.
    """
    # here, since tensorboard takes a second to import
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written: dict[str, list[tuple[float, int, float]]] = {}
    for path in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            written.setdefault(tag, []).extend(
                (event.wall_time, event.step, event.value) for event in events.Scalars(tag)
            )
    return {
        tag: pd.Series({step: value for _, step, value in sorted(events)}, dtype=float).sort_index()
        for tag, events in written.items()
    }


def summarize_seeds(series: Sequence[pd.Series]) -> pd.DataFrame:
    """Return mean, lowest and highest of the seeds at the steps that all of them reached.

    >>> summarize_seeds([pd.Series({1: 0.0, 2: 4.0, 3: 5.0}), pd.Series({1: 2.0, 2: 4.0})])
       mean  low  high
    1   1.0  0.0   2.0
    2   4.0  4.0   4.0
    """
    seeds = pd.concat(series, axis=1, join="inner").sort_index()
    return pd.DataFrame(
        {"mean": seeds.mean(axis=1), "low": seeds.min(axis=1), "high": seeds.max(axis=1)}
    )


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
