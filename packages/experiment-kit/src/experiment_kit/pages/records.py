"""The files that a finished run leaves: its result, scalars by step, and spectral measures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiment_kit.run_files import read_mapping, read_result, try_read

TAGS = ("train/loss", "train/steps_per_second")
_SHOWN = "|".join([*TAGS, "val/.*"])


@dataclass(frozen=True)
class RunRecord:
    """One finished run of a method or a row; files that it did not write are empty here."""

    label: str
    result: dict[str, Any]
    scalars: dict[str, pd.Series] = field(default_factory=dict)
    spectral: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def read_run_record(label: str, folder: Path, **expected: str) -> RunRecord | None:
    """Read the folder of a run; None if it has no result. A bad file is left out with a warning."""
    result = try_read(read_result, folder, **expected)
    if result is None:
        return None
    config = try_read(read_config, folder / "config.yaml")
    spectral = try_read(read_mapping, folder / "spectral.json", "delete it")
    return RunRecord(label, result, read_scalars(folder), spectral or {}, config or {}, folder)


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the config of a run; None if there is none. UserError if it is damaged."""
    return read_mapping(path, "restore it, or move the run away to train it again", yaml.safe_load)


def read_scalars(folder: Path, tags: str = _SHOWN) -> dict[str, pd.Series]:
    """Read the scalars of a run whose tags match, over steps.

    A resumed run has several event files whose steps overlap: the last value written counts.
    """
    # here, since tensorboard takes a second to import
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    written: dict[str, list[tuple[float, int, float]]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if re.fullmatch(tags, value.tag):
                    point = event.wall_time, event.step, value.simple_value
                    written.setdefault(value.tag, []).append(point)
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
