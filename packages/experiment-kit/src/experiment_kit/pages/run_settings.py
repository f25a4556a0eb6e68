"""The runs of a page with their files, and the settings in which their methods differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment_kit.pages.records import RunRecord
from experiment_kit.pages.tables import PageTable, TableCell
from experiment_kit.pages.template import link_file
from experiment_kit.run import select_settings
from experiment_kit.run_files import is_finite

ABSENT = "–"
FILES = {  # of a run -> the text of a link
    "config.yaml": "config",
    "environment.yaml": "environment",
    "log.txt": "log",
    "result.json": "result",
}


@dataclass(frozen=True)
class RunSettings:
    """Settings of compared runs: a table of those that differ, and the `shared` ones."""

    differing: PageTable
    shared: Mapping[str, str]


def list_runs(records: Sequence[RunRecord], labels: Mapping[str, str], page: Path) -> PageTable:
    """Return a table of the runs, one line each, with links relative to the page."""
    metrics = list(dict.fromkeys(name for r in records for name in r.result["metrics"]))
    head = ["run", "seed", *metrics, "commit", *FILES.values()]
    rows = [
        [
            TableCell(labels[record.label]),
            TableCell(str(seed := record.result["seed"]), seed),
            *(_format_metric(record.result["metrics"].get(name)) for name in metrics),
            TableCell(_format_commit(record.result.get("environment") or {})),
            *(link_run_file(record.folder, name, page) for name in FILES),
        ]
        for record in records
    ]
    return PageTable("runs", head, rows)


def _format_metric(value: Any) -> TableCell:
    return TableCell(f"{value:.4g}", value) if is_finite(value) else TableCell(ABSENT)


def _format_commit(environment: Mapping[str, Any]) -> str:
    commit, modified = environment.get("commit"), environment.get("modified")
    return f"{str(commit)[:10]}{' modified' if modified else ''}" if commit else ABSENT


def link_run_file(folder: Path | None, name: str, page: Path) -> TableCell:
    """Return a link to a file of a run, relative to the page; a dash where there is none."""
    if folder is None or not (folder / name).is_file():
        return TableCell(ABSENT)
    return TableCell(FILES.get(name, "result"), href=link_file(folder / name, page))


def compare_settings(records: Sequence[RunRecord], labels: Mapping[str, str]) -> RunSettings:
    """Compare the configs of the methods, of which the first run counts; seeds are left out."""
    configs: dict[str, dict[str, str]] = {}
    for record in records:
        if record.config:
            configs.setdefault(labels[record.label], flatten_settings(record.config))
    names = list(dict.fromkeys(name for config in configs.values() for name in config))
    values = {name: [config.get(name, ABSENT) for config in configs.values()] for name in names}
    differing = {name: texts for name, texts in values.items() if len({*texts}) > 1}
    shared = {name: texts[0] for name, texts in values.items() if name not in differing}
    rows = [[TableCell(name), *map(TableCell, texts)] for name, texts in differing.items()]
    return RunSettings(PageTable("settings that differ", ["setting", *configs], rows), shared)


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as text, without seeds and what is not set.

    >>> kernel = {"class_path": "attention_core.AGF", "init_args": {"K": 3, "L": None}}
    >>> flatten_settings({"seed_everything": 0, "model": {"kernel": kernel}})
    {'model.kernel': 'attention_core.AGF', 'model.kernel.K': '3'}
    """
    settings = select_settings(config)
    seed = settings.pop("seed_everything", None)
    flat = _flatten(settings)
    if flat.get("data.seed") == str(seed):  # linked to that of the run
        del flat["data.seed"]
    return flat


def _flatten(value: Any, key: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return {} if value is None else {key: text}
    flat: dict[str, str] = {}
    for name, part in value.items():
        inner = key if name in ("class_path", "init_args") else ".".join(filter(None, [key, name]))
        flat |= _flatten(part, inner)
    return flat
