"""The files that a finished run leaves: its result, scalars by step, and spectral measures."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiment_kit.errors import UserError
from experiment_kit.run_files import (
    is_number,
    read_mapping,
    read_or_warn,
    read_result,
    refuse_special_file,
)

TAGS = ("train/loss", "z_run/steps_per_second")
_SHOWN = "|".join([*TAGS, "val/.*"])  # of pages
_OLD_TAGS = {"speed/steps_per_second": "z_run/steps_per_second"}
_RECORD_HEAD = struct.Struct("<Q4x")  # of an event: its length, and a checksum of that
_RECORD_TAIL = 4  # its checksum


@dataclass(frozen=True)
class RunRecord:
    """One finished run of a method or a row; files that it did not write are empty here."""

    label: str
    result: dict[str, Any]
    scalars: dict[str, pd.Series] = field(default_factory=dict)
    spectral: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def read_record(label: str, folder: Path, **expected: str) -> RunRecord | None:
    """Read the folder of a run; None if it has no result of the expected run.

    A bad file is left out with one warning.
    """
    result = read_or_warn(read_result, folder, **expected)
    if result is None:
        return None
    config = read_or_warn(read_config, folder / "config.yaml")
    spectral = read_or_warn(_read_spectral, folder / "spectral.json")
    return RunRecord(label, result, read_scalars(folder), spectral or {}, config or {}, folder)


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the config of a run; None if there is none. UserError if it is damaged."""
    remedy = "restore it, or move the run's folder away to train it again"
    config = read_mapping(path, remedy, yaml.safe_load)
    if config is not None:
        data = config.get("data")
        options = data.get("init_args") if isinstance(data, dict) else None
        size = options.get("batch_size") or 1 if isinstance(options, dict) else None
        if type(size) is not int or size < 1:
            raise UserError(f"{path} lacks data.init_args with a whole batch_size: {remedy}")
    return config


def _read_spectral(path: Path) -> dict[str, Any] | None:
    remedy = "delete it to draw the figures without it"
    measures = read_mapping(path, remedy)
    if measures is not None and not _is_spectral(measures):
        raise UserError(f"{path} lacks the numbers of each layer in depth and response: {remedy}")
    return measures


def _is_spectral(measures: dict[str, Any]) -> bool:
    depth, response = measures.get("depth"), measures.get("response")
    if not (isinstance(depth, list) and depth and isinstance(response, list)):
        return False
    layers = [[*layer.values()] if isinstance(layer, dict) else None for layer in depth]
    return all(
        isinstance(layer, list) and all(map(is_number, layer)) for layer in layers + response
    )


def read_scalars(folder: Path, tags: str = _SHOWN) -> dict[str, pd.Series]:
    """Read the scalars of `<folder>/tensorboard` whose tags match, over steps.

    A resumed run has several event files whose steps overlap: the last value written counts.
    """
    written: dict[str, list[tuple[float, int, float]]] = {}
    for path in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        for event in read_or_warn(_read_events, path) or ():
            for value in event.summary.value:
                if re.fullmatch(tags, tag := _OLD_TAGS.get(value.tag, value.tag)):
                    point = event.wall_time, event.step, value.simple_value
                    written.setdefault(tag, []).append(point)
    return {
        tag: pd.Series({step: value for _, step, value in sorted(events)}, dtype=float).sort_index()
        for tag, events in written.items()
    }


def _read_events(path: Path) -> list[Any]:
    """Read an event file, without the last event if that is cut; UserError if it is damaged.

    TensorBoard's own reader takes most of its time for checksums in pure Python.
    """
    # here, since tensorboard takes a second to import
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event

    refuse_special_file(path, "delete it to draw the curves without it")
    events, begin = [], _RECORD_HEAD.size
    try:
        content = path.read_bytes()
        while begin < len(content):
            (size,) = _RECORD_HEAD.unpack_from(content, begin - _RECORD_HEAD.size)
            if (end := begin + size) > len(content):
                break
            events.append(Event.FromString(content[begin:end]))
            begin = end + _RECORD_TAIL + _RECORD_HEAD.size
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} is damaged: delete it to draw the curves without it") from error
    return events


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
