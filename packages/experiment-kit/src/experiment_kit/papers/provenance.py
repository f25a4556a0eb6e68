"""The provenance of published values: a small record of each run, and the lines that lead to it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiment_kit.errors import UserError
from experiment_kit.pages.records import read_config, read_scalars
from experiment_kit.papers.results import EXTRA_DECIMALS, TableResults, select_setting
from experiment_kit.papers.spec import SOURCES
from experiment_kit.run import Run, write_atomically
from experiment_kit.run_files import (
    compute_digest,
    read_mapping,
    read_or_warn,
    read_report,
    read_starts,
    refuse_special_file,
)

NOT_RECORDED = "not recorded"
CONFIGS, RECORDS = "configs", "records"  # folders beside the tables
POINTS = 24  # of a curve in a record
LOG_LINES, LOG_BYTES = 40, 1 << 16  # of the end of a log
_CURVES = r"train/loss|val/.*"
_OWN_PACKAGES = ("attention-core", "experiment-kit")
_REMEDY = "publish its table again on the machine of the run, or delete it"


@dataclass(frozen=True)
class RunLine:
    """The value of one seed in a cell, and what led to it; `config` and `record` are its files."""

    row: str
    column: str
    seed: int
    value: str
    run: str
    commit: str
    environment: str
    config: Path | None
    record: Path | None


def publish_run(folder: Path, out: Path) -> None:
    """Write the config and the record of a run beside the tables, each whole or not at all."""
    run = Run(folder).hash
    path = folder / "config.yaml"
    if read_or_warn(read_config, path):  # a run of which only the cost was measured has none
        write_atomically(out / CONFIGS / f"{run}.yaml", path.read_bytes())
    record = json.dumps(collect_record(folder), indent=1, ensure_ascii=False)
    write_atomically(out / RECORDS / f"{run}.json", record + "\n")


def collect_record(folder: Path) -> dict[str, Any]:
    """Collect what defends the numbers of a run, in a few kB.

    These are its measurements as they were written, with their digest; the environment of each
    start; training loss and validation metrics at up to 24 steps; and the end of its log.
    """
    reports = {
        source: read_mapping(folder / f"{source}.json", _REMEDY)
        for source in SOURCES
        if read_or_warn(read_report, folder, source)
    }
    starts = read_or_warn(read_starts, folder) or []
    return {
        "run": folder.name,
        **reports,
        "starts": [{k: v for k, v in start.items() if k != "command"} for start in starts],
        "curves": {tag: _thin_curve(s) for tag, s in read_scalars(folder, _CURVES).items()},
        "log": read_or_warn(read_log_end, folder / "log.txt") or [],
    }


def _thin_curve(series: "pd.Series[float]") -> dict[str, float]:
    """Return up to 24 points of a curve by step, among them the first and the last."""
    last, count = len(series) - 1, min(len(series), POINTS)
    chosen = [round(i * last / max(1, count - 1)) for i in range(count)]
    return {str(series.index[i]): float(f"{series.iloc[i]:.6g}") for i in chosen}


def read_log_end(path: Path) -> list[str]:
    """Return the last lines of a log without repeated ones; none if there is no log."""
    refuse_special_file(path, "delete it")
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        text = file.read().decode(errors="replace")
    shown = (line.rpartition("\r")[2].rstrip() for line in text.split("\n"))
    printable = ("".join(filter(str.isprintable, line)) for line in shown)
    lines = (re.sub(r"\S*/site-packages/", "", line)[:400] for line in printable)
    return [*dict.fromkeys(filter(None, lines))][-LOG_LINES:]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record of a run; None if there is none. UserError if it is damaged or edited."""
    record = read_mapping(path, _REMEDY)
    result = (record or {}).get("result")
    if isinstance(result, dict) and result.get("digest") not in (None, compute_digest(result)):
        raise UserError(f"{path} was changed after it had been published: {_REMEDY}")
    return record


def list_run_lines(results: TableResults, profile: str, protocol: str, out: Path) -> list[RunLine]:
    """List the seeds of every cell of a setting with the files of their runs in `out`."""
    digits = results.spec.decimals(results.paper)
    lines = []
    for line in select_setting(results.runs, profile, protocol).to_dict("records"):
        run = str(line["run"])
        config, path = out / CONFIGS / f"{run}.yaml", out / RECORDS / f"{run}.json"
        is_name = re.fullmatch(r"\w+", run) is not None  # a CSV may name anything
        record = read_or_warn(read_record, path) if is_name else None
        lines.append(
            RunLine(
                line["row"],
                line["column"],
                int(line["seed"]),
                f"{line['value']:.{digits[line['column']] + EXTRA_DECIMALS}f}",
                run,
                NOT_RECORDED if line["commit"] == "unknown" else line["commit"],
                describe_environment(record, line["versions"]),
                config if is_name and config.is_file() else None,
                path if record else None,
            )
        )
    return lines


def describe_environment(record: Mapping[str, Any] | None, versions: str) -> str:
    """Say in which environment a run finished; `versions` are those that its line has.

    Those of this repository's packages are left out, as the commit tells more; the record has all.
    """
    starts = (record or {}).get("starts")
    last = starts[-1] if isinstance(starts, list) and starts else None
    known = [v for v in versions.split("; ") if v and v.partition(" ")[0] not in _OWN_PACKAGES]
    if isinstance(last, dict) and last.get("device"):
        threads = last.get("threads")
        known.append(f"{last['device']}, {threads} thread{'s' * (threads != 1)}")
    return "; ".join(known) or NOT_RECORDED


def make_anchors(results: TableResults) -> dict[tuple[str, str, str], str]:
    """Name the section of runs of every row, profile and protocol as GitHub and MyST do."""
    anchors: dict[tuple[str, str, str], str] = {}
    labels = results.spec.labels(results.paper)
    runs = results.runs[["profile", "protocol", "row"]].drop_duplicates()
    for profile, protocol, row in runs.itertuples(index=False):
        base = make_slug(format_heading(labels.get(row, row), profile, protocol))
        taken = [*anchors.values()]
        count = sum(re.fullmatch(rf"{re.escape(base)}(-\d+)?", name) is not None for name in taken)
        anchors[row, profile, protocol] = f"{base}-{count}" if count else base
    return anchors


def format_heading(label: str, profile: str, protocol: str) -> str:
    """Return the heading of the runs of a row."""
    return f"{label}: {profile}, {protocol}"


def make_slug(heading: str) -> str:
    """Return the anchor that GitHub and MyST give a heading.

    >>> make_slug("Transformer + GFSA: paper, test")
    'transformer--gfsa-paper-test'
    """
    return re.sub(r"[^\w\- ]", "", " ".join(heading.lower().split())).replace(" ", "-")


def group_lines(lines: Sequence[RunLine]) -> dict[str, list[RunLine]]:
    """Return the lines of each row, in order."""
    rows: dict[str, list[RunLine]] = {}
    for line in lines:
        rows.setdefault(line.row, []).append(line)
    return rows
