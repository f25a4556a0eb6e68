"""The files that finished runs leave, and tables of them and of the settings that differ."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from markupsafe import Markup

from experiment_kit.pages.tables import MISSING, PageTable, link_file
from experiment_kit.run import select_settings
from experiment_kit.run_files import is_finite, read_config, read_mapping, read_result, try_read

FILES = ("config.yaml", "environment.yaml", "log.txt", "result.json")  # that a run leaves
_SHOWN = "train/loss|val/(?!smoothing).*"
Curve = TypeVar("Curve", pd.Series, pd.DataFrame)


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
    """Read the scalars of a run whose tags match, over steps."""
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


def thin_curve(curve: Curve, points: int) -> Curve:
    """Return up to so many steps of a curve, evenly spaced from the first to the last."""
    places = np.linspace(0, len(curve) - 1, min(len(curve), points)).round()
    return curve.iloc[places.astype(int)]


def tabulate_runs(records: Sequence[RunRecord], page: Path) -> PageTable:
    """Return a table of the runs, one line each, with links relative to the page."""
    metrics = list(dict.fromkeys(name for r in records for name in r.result["metrics"]))
    rows = []
    for record in records:
        seed, environment = record.result["seed"], record.result.get("environment") or {}
        values = map(record.result["metrics"].get, metrics)
        numbers = (f"{value:.4g}" if is_finite(value) else MISSING for value in values)
        commit = str(environment.get("commit") or MISSING)[:10]
        commit += " modified" * bool(environment.get("modified"))
        files = [record.folder / name for name in FILES if record.folder]
        link = Markup('<a href="{}">{}</a>').format
        links = (link(link_file(x, page), x.stem) if x.is_file() else MISSING for x in files)
        rows.append([record.label, str(seed), *numbers, commit, *links])
    head = ["run", "seed", *metrics, "commit", *(Path(name).stem for name in FILES)]
    return PageTable("runs", head, rows)


def compare_settings(configs: Mapping[str, Mapping[str, Any]]) -> PageTable:
    """Return a table of the settings in which configs differ, without seeds."""
    flat = [flatten_settings(config) for config in configs.values()]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows = [[name, *(settings.get(name, MISSING) for settings in flat)] for name in names]
    differing = [row for row in rows if len({*row[1:]}) > 1]
    return PageTable("settings that differ", ["setting", *configs], differing)


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as text, without seeds and what is not set."""
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
