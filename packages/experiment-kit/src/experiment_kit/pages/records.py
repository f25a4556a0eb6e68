"""The files that finished runs leave, and tables of them and of the settings that differ."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from experiment_kit.pages.tables import MISSING, PageTable, TableCell, link_file
from experiment_kit.run import select_settings
from experiment_kit.run_files import is_finite, read_config, read_mapping, read_result, try_read

FILES = ("config.yaml", "environment.yaml", "log.txt", "result.json")  # that a run leaves
_SHOWN = "train/loss|val/.*"


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


def tabulate_runs(records: Sequence[RunRecord], page: Path) -> PageTable:
    """Return a table of the runs, one line each, with links relative to the page."""
    metrics = list(dict.fromkeys(name for r in records for name in r.result["metrics"]))
    rows = []
    for record in records:
        seed, environment = record.result["seed"], record.result.get("environment") or {}
        row = [TableCell(record.label), TableCell(str(seed), seed)]
        for value in map(record.result["metrics"].get, metrics):
            shown = is_finite(value)
            row.append(TableCell(f"{value:.4g}", value) if shown else TableCell(MISSING))
        commit = str(environment.get("commit") or MISSING)[:10]
        row.append(TableCell(f"{commit} modified" if environment.get("modified") else commit))
        for path in (record.folder / name for name in FILES if record.folder):
            href = link_file(path, page) if path.is_file() else ""
            row.append(TableCell(path.stem if href else MISSING, href=href))
        rows.append(row)
    head = ["run", "seed", *metrics, "commit", *(Path(name).stem for name in FILES)]
    return PageTable("runs", head, rows)


def compare_settings(records: Sequence[RunRecord]) -> tuple[PageTable, dict[str, str]]:
    """Return a table of the settings in which methods differ, and those that all share.

    The first run of a method counts; seeds are left out.
    """
    configs = {r.label: flatten_settings(r.config) for r in reversed(records) if r.config}
    configs = dict(reversed(configs.items()))
    names = list(dict.fromkeys(name for config in configs.values() for name in config))
    values = {name: [config.get(name, MISSING) for config in configs.values()] for name in names}
    differing = {name: texts for name, texts in values.items() if len({*texts}) > 1}
    shared = {name: texts[0] for name, texts in values.items() if name not in differing}
    rows = [[TableCell(name), *map(TableCell, texts)] for name, texts in differing.items()]
    return PageTable("settings that differ", ["setting", *configs], rows), shared


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as text, without seeds and what is not set.

    >>> kernel = {"class_path": "attention_core.AGF", "init_args": {"K": 3, "L": None}}
    >>> flatten_settings({"seed_everything": 0, "model": {"kernel": kernel}})
    {'model.kernel': 'attention_core.AGF', 'model.kernel.K': '3'}
    """
    settings = select_settings(config)
    seed = settings.pop("seed_everything", None)
    (flat,) = pd.json_normalize(settings).to_dict("records")
    texts = {
        re.sub(r"\.(class_path|init_args)\b", "", str(key)): value
        if isinstance(value, str)
        else json.dumps(value, default=str)
        for key, value in flat.items()
        if value is not None
    }
    if texts.get("data.seed") == str(seed):  # linked to that of the run
        del texts["data.seed"]
    return texts
