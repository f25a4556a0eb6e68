"""Published runs, one line of runs.jsonl each, and the lines that lead from a number to its run."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from filelock import FileLock

from experiment_kit import run_files
from experiment_kit.app_files import merge_settings, read_option
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.launch.options import find_path, read_grid, shorten_key
from experiment_kit.pages.records import read_scalars, thin_curve
from experiment_kit.papers.results import EXTRA_DECIMALS, UNKNOWN, TableResults
from experiment_kit.papers.spec import REPORTS, SELECTED, TableSpec
from experiment_kit.run import Run

NOT_RECORDED = "not recorded"
RUNS = "runs.jsonl"  # beside the tables
POINTS = 8  # in a published curve
NAMES = ("app", "data", "backbone", "method", "profile", "protocol", "seed", "hash")
_VERSIONS = ("python", "torch", "lightning")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def publish_runs(folders: Iterable[Path], out: Path) -> None:
    """Add runs to the published ones, the whole file or nothing."""
    new = [describe_published_run(folder) for folder in folders]
    path = out / RUNS
    with FileLock(f"{path}.lock"):  # two tables at once must not lose each other's runs
        runs = read_runs(out)
        for run in new:
            runs[run["hash"]] = runs.get(run["hash"], {}) | run
        if new:
            ordered = sorted(runs.values(), key=lambda run: [str(run.get(k, "")) for k in NAMES])
            lines = (_encode(run) + "\n" for run in _shorten_configs(ordered))
            run_files.write_atomically(path, "".join(lines))


def _shorten_configs(runs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Write a config as its changes to that of an earlier run, `config_of`, where this is half."""
    whole: dict[str, Any] = {}
    for run in runs:
        config = run.get("config", {})
        found = {name: _diff_settings(base, config) for name, base in whole.items()}
        right = [name for name in found if merge_settings(whole[name], found[name]) == config]
        name = min(right, key=lambda name: len(_encode(found[name])), default=None)
        if name and 2 * len(_encode(found[name])) < len(_encode(config)):
            yield run | {"config_of": name, "config": found[name]}
        else:
            whole[run["hash"]] = config
            yield run


def _diff_settings(first: Any, second: Any) -> Any:
    """Return what makes the second of the first by `merge_settings`, unless the first has more."""
    both = isinstance(first, dict) and isinstance(second, dict)
    if not both or first.get("class_path") != second.get("class_path"):
        return second
    new = [k for k, v in second.items() if k not in first or _encode(first[k]) != _encode(v)]
    return {key: _diff_settings(first.get(key), second[key]) for key in new}


def describe_published_run(folder: Path) -> dict[str, Any]:
    """Collect names, reports with their digest, starts, thinned curves and config of a run."""
    config = run_files.try_read(run_files.read_config, folder / "config.yaml") or {}
    for option, value in [*config.get("trainer", {}).items()]:
        if value is None and option != "check_val_every_n_epoch":  # null is their default
            del config["trainer"][option]
    reports = {
        source: run_files.read_mapping(folder / f"{source}.json", "delete it")
        for source in REPORTS
        if run_files.try_read(run_files.read_report, folder, source)
    }
    named = Run.parse(folder)
    known = {**(named._asdict() if named else {}), **config.get("run", {})}
    known |= reports.get("result") or {}
    starts = run_files.try_read(run_files.read_starts, folder) or []
    curves = {tag: thin_curve(s, POINTS) for tag, s in read_scalars(folder).items()}
    run = {
        **{name: known.get(name) for name in NAMES},
        **reports,
        "starts": [{k: v for k, v in start.items() if k != "command"} for start in starts],
        "curves": {t: {str(k): float(f"{v:.4g}") for k, v in c.items()} for t, c in curves.items()},
        "config": config,
    }
    return {key: value for key, value in run.items() if value not in (None, [], {})}


def read_runs(out: Path) -> dict[str, dict[str, Any]]:
    """Return the published runs by their hashes; where a run has two lines, the later one wins."""
    runs: dict[str, dict[str, Any]] = {}
    path = out / RUNS
    lines = path.read_bytes().splitlines() if path.is_file() else []
    whole: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        with convert_user_errors(ValueError, KeyError, prefix=f"{path}, line {number} is no run: "):
            run = json.loads(line)
            if "config_of" in run:
                if (base := run.pop("config_of")) not in whole:
                    raise ValueError(f"no line above has {base}, whose config it changes")
                run["config"] = merge_settings(whole[base], run["config"])
            whole[run["hash"]] = run.get("config")
            runs[run["hash"]] = runs.get(run["hash"], {}) | run
        result = run.get("result", {})
        if result.get("digest") not in (None, run_files.compute_digest(result)):
            raise UserError(f"{path}, line {number}, was edited after it had been published")
    return runs


def find_published_run(name: str, out: Path) -> dict[str, Any]:
    """Return the published run whose hash starts with a name; UserError unless there is one."""
    found = [run for key, run in read_runs(out).items() if name and key.startswith(name)]
    if len(found) != 1 or "config" not in found[0]:
        count = f"{len(found)} runs" if len(found) != 1 else "no config of the run"
        raise UserError(f"--run={name}: {out / RUNS} has {count} of this hash: name one of a table")
    return found[0]


class RunSection(NamedTuple):
    """The part of a page about the runs of a row under a profile and a protocol."""

    heading: str
    anchor: str
    runs: pd.DataFrame


def list_sections(results: TableResults) -> dict[tuple[str, str, str], RunSection]:
    """Return the section of each profile, protocol and row, named as GitHub and MyST do."""
    labels, sections = results.spec.labels, {}
    for place, runs in results.runs.groupby(["profile", "protocol", "row"], sort=False):
        profile, protocol, row = place
        heading = f"{labels.get(row, row)}: {profile}, {protocol}"
        sections[profile, protocol, row] = RunSection(heading, make_slug(heading), runs)
    return sections


def tabulate_section(
    results: TableResults, runs: pd.DataFrame, published: Mapping[str, Any]
) -> list[list[str]]:
    """Return a heading and a line for each run, with the environment in which it finished."""
    digits, headings = results.spec.decimals, results.paper.headings
    lines = [["column", "seed", "value", "run", "commit", "environment"]]
    for line in runs.itertuples():
        value = f"{line.value:.{digits[line.column] + EXTRA_DECIMALS}f}"
        value += describe_selection(results.spec, line.row, published.get(line.run, {}))
        commit = NOT_RECORDED if line.commit == UNKNOWN else line.commit
        machine = describe_machine(published.get(line.run, {}))
        lines.append([headings[line.column], str(line.seed), value, line.run, commit, machine])
    return lines


def describe_selection(spec: TableSpec, row: str, run: Mapping[str, Any]) -> str:
    """Return the options that a grid chose for a run; "" for a row without a grid."""
    if not row.endswith(SELECTED):
        return ""
    grid, config = read_grid(spec.app, spec.grids[row.removesuffix(SELECTED)]), run.get("config")
    found = {shorten_key(k, grid): read_option(config, find_path(config, k)) for k in grid}
    return f" ({', '.join(f'{key}={value}' for key, value in found.items())})"


def describe_machine(run: Mapping[str, Any]) -> str:
    """Say in which environment a run finished; the commit tells the version of our packages."""
    last = [{}, *run.get("starts", ())][-1]
    code = next((run[name].get("environment") or {} for name in REPORTS if name in run), {})
    versions = {"python": code.get("python"), **code.get("versions", {})}
    known = [f"{name} {versions[name]}" for name in _VERSIONS if versions.get(name)]
    if last.get("device"):
        threads = last.get("threads")
        known.append(f"{last['device']}, {threads} thread{'s' * (threads != 1)}")
    return "; ".join(known) or NOT_RECORDED


def make_slug(heading: str) -> str:
    """Return the anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", " ".join(heading.lower().split())).replace(" ", "-")
