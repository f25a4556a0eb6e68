"""Results of a table, one line a run; a cell is a group of lines, compared with the print."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.spec import PAPER, Cell, Setting, TableSpec
from experiment_kit.papers.values import PaperTable, count_tests
from experiment_kit.run import Run
from experiment_kit.run_files import is_finite, read_report, write_atomically

CELL = ["table", "row", "column", "profile", "protocol"]
CONDITION = ["profile", "protocol"]
EXTRA_DECIMALS = 2  # for a run, so that the mean can be computed from the file
RANDOM, CITED = "random", "cited"
UNKNOWN, MODIFIED = "unknown", "-modified"  # commits
NOT_COMPARABLE = "not comparable"
MIN_SEEDS = 3  # for a verdict
EXACT = {"parameters", "multiply_adds"}  # costs that are counted, alike on every device

# a line: `value` is in the paper's unit, `run` the hash of the config, `commit` that of the code;
# `weights_source` says where training started, "random" or "pretrained: <name>", where rows differ
COLUMNS = [*CELL, "seed", "value", "run", "commit", "weights_source"]
TYPES = {**dict.fromkeys(COLUMNS, str), "seed": int, "value": float}
Measurement = dict[str, Any]  # a line


class CellResult(NamedTuple):
    """A cell as text, and as an estimate where it is measured.

    `kind` and `reason` are the verdict where there is a printed value as well.
    """

    row: str
    key: str
    digits: int
    ours: str
    printed: str
    estimate: MeanDeviation | None
    difference: str = ""
    kind: str = ""
    reason: str = ""


@dataclass(frozen=True)
class TableResults:
    """The runs of a table in its order, beside how it is made and what the paper prints."""

    spec: TableSpec
    runs: pd.DataFrame

    @property
    def paper(self) -> PaperTable:
        """The printed table."""
        return self.spec.paper

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """The profiles and protocols that have runs."""
        return sorted(set(self.runs[CONDITION].itertuples(index=False, name=None)))

    def select_runs(self, profile: str, protocol: str) -> pd.DataFrame:
        """Return the lines of one profile and protocol."""
        runs = self.runs
        return runs[(runs["profile"] == profile) & (runs["protocol"] == protocol)]

    def compare_cells(self, profile: str, protocol: str) -> list[CellResult]:
        """Compare the cells of a profile and a protocol with the printed ones, row by row."""
        groups = self.select_runs(profile, protocol).groupby(["row", "column"])
        runs = {place: group.set_index("seed") for place, group in groups}
        spec, cells = self.spec, []
        for row, key in product(spec.labels, spec.paper.measurable):
            places = self._list_parts(row, key)
            measured = [runs[place] for place in places if place in runs]
            estimate, reason, settings = None, "", list[Setting]()
            if measured and len(measured) == len(places):
                values = [part["value"] for part in measured]
                estimate = _estimate_cell(values, is_difference=key in spec.computed)
                settings = [spec.setting(*place) for place in places]
                reason = self.explain_incomparable(profile, protocol, settings, pd.concat(measured))
            cells.append(self._describe_cell(row, key, estimate, reason, settings))
        return cells

    def _describe_cell(
        self, row: str, key: str, estimate: MeanDeviation | None, incomparable: str,
        settings: Sequence[Setting],
    ) -> CellResult:  # fmt: skip
        """Compare a cell with the printed value, unless `incomparable` says why it cannot be."""
        paper, digits = self.paper, self.spec.decimals[key]
        column, printed = paper.columns[key], paper.printed_value(row, key)
        absent = CITED if row in self.spec.cited else MISSING
        text = "" if printed is None else column.format_value(printed)
        ours = estimate.format(digits) if estimate else absent if text else MISSING
        cell = CellResult(row, key, digits, ours, text, estimate)
        if estimate is None or printed is None:
            return cell
        difference = round(round(estimate.mean, digits) - printed, digits)
        signed = f"{difference:+.{digits}f}".replace("-", "−")
        is_exact = {setting.metric for setting in settings} <= EXACT
        if is_exact:
            estimate = replace(estimate, std=0.0, count=MIN_SEEDS)  # an interval of no width
        elif not incomparable and estimate.count < MIN_SEEDS:
            seeds = "one seed has" if estimate.count == 1 else f"{estimate.count} seeds have"
            incomparable = f"{seeds} no interval worth a verdict"
        elif not incomparable and round(estimate.half_width, digits) == 0:
            incomparable = "the interval has no width, as the seeds are equal"
        if incomparable:
            kind, reason = NOT_COMPARABLE, incomparable
        else:
            data = settings[0].data if len(settings) == 1 else ""
            tolerance, origin = find_tolerance(paper, row, key, printed, data)
            better = None if is_exact else column.higher_is_better
            kind, side = compare_estimate(estimate, printed, tolerance, better, digits)
            shown = "count" if is_exact else "interval"
            reason = f"the {shown} {side} {text} ± {tolerance:.2g}, {origin}"
        return cell._replace(difference=signed, kind=kind, reason=reason)

    def explain_incomparable(
        self, profile: str, protocol: str, settings: Sequence[Setting], runs: pd.DataFrame
    ) -> str:
        """Return why runs of a cell cannot be compared with the printed value; "" if they can."""
        if profile != PAPER:
            return f"profile {profile} is not the paper's scale"
        # the cost of a model needs no data
        costs = [setting.metric for setting in settings if setting.report == "efficiency"]
        if {*costs} - EXACT:
            return "a cost that depends on the device, which is another one than the paper's"
        if len(costs) < len(settings) and protocol != self.spec.protocol:
            return f"protocol {protocol} is not the paper's, {self.spec.protocol}"
        if (runs["weights_source"] == RANDOM).any():
            return "weights are random where the paper's are pretrained"
        if (runs["commit"] == UNKNOWN).any():
            return "the commit of a run is not recorded"
        is_modified = runs["commit"].str.endswith(MODIFIED).any()
        return "a run had changes that were not committed" if is_modified else ""

    def _list_parts(self, row: str, column: str) -> list[tuple[str, str]]:
        """Return the measured cells of which a cell is made; most cells are their only part."""
        if (computed := self.spec.computed.get(column)) is None:
            return [(row, part) for part in self.paper.columns[column].over or (column,)]
        minus = [computed.minus[row]] if row in computed.minus else []
        is_printed = self.paper.printed_value(row, column) is not None
        is_made = is_printed and (minus or not computed.minus)
        return [(part, computed.column) for part in (row, *minus) if is_made]


def _estimate_cell(parts: Sequence[pd.Series], is_difference: bool) -> MeanDeviation | None:
    """Summarize the seeds that all parts have: the mean of columns, or the difference of rows."""
    seeds = pd.concat(parts, axis=1, join="inner")
    if seeds.empty:
        return None
    if is_difference or len(parts) == 1:
        first, *others = (seeds.iloc[:, i] for i in range(len(parts)))
        return MeanDeviation.from_values((first - sum(others)).to_list())
    # runs on different data are independent, so that the variances of their means add
    return MeanDeviation(fmean(seeds.mean()), math.hypot(*seeds.std()) / len(parts), len(seeds))


def read_measurement(cell: Cell, folder: Path) -> Measurement | None:
    """Read the value of a cell from the folder of its run; None if it has not been measured."""
    experiment = cell.experiment
    content = read_report(folder, experiment.source, profile=experiment.profile or "paper")
    if content is None:
        return None
    path, metrics = folder / f"{experiment.source}.json", content["metrics"]
    if not experiment.is_measured_by(content):
        raise UserError(f"{path} was measured with other samples or epoch than its cell")
    if not is_finite(value := metrics.get(cell.metric)):
        found = ", ".join(metrics) or "none"
        raise UserError(f"{path} has no finite {cell.metric} for {cell.table}; it has {found}")
    code = content.get("environment") or {}
    commit, modified = code.get("commit"), code.get("modified")
    return {
        **{name: getattr(cell, name) for name in ("table", "row", "column")},
        **{name: getattr(experiment, name) for name in CONDITION},
        "seed": experiment.seed if experiment.is_trained else 0,  # the cost of a model has none
        "value": value * cell.scale,
        "run": Run(folder).hash,
        "commit": f"{str(commit)[:10]}{MODIFIED if modified else ''}" if commit else UNKNOWN,
        "weights_source": str(content.get("weights_source", "")),
    }


def add_measurements(
    old: pd.DataFrame, measurements: Sequence[Measurement], spec: TableSpec
) -> pd.DataFrame:
    """Return old and new lines in the order of the table; a later line replaces one of its seed."""
    new = pd.DataFrame(measurements, columns=COLUMNS).astype(TYPES)
    digits = new["column"].map(spec.decimals) + EXTRA_DECIMALS  # as they are written
    new["value"] = [*map(round, new["value"], digits)]
    frame = pd.concat([old, new]).drop_duplicates([*CELL, "seed"], keep="last")
    orders = {"row": spec.labels, "column": spec.paper.columns}
    ranks = {kind: {name: i for i, name in enumerate(order)} for kind, order in orders.items()}

    def rank(names: pd.Series) -> pd.Series:
        return names.map(ranks[names.name]) if names.name in ranks else names

    by = ["table", *CONDITION, "row", "column", "seed"]  # rows that the spec lacks come last
    return frame.sort_values(by, key=rank, kind="stable", ignore_index=True)


def read_results(path: Path) -> pd.DataFrame:
    """Read the lines of a table that was published before; none if there is no file."""
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS).astype(TYPES)
    with convert_user_errors(ValueError, OverflowError, prefix=f"{path} cannot be read: "):
        frame = pd.read_csv(path, dtype=TYPES, keep_default_na=False, usecols=COLUMNS)[COLUMNS]
        is_named = frame[CONDITION].map(re.compile(r"\w[\w.-]*").fullmatch).notna().all(axis=None)
        if not (is_named and frame["value"].map(is_finite).all() and (frame["seed"] >= 0).all()):
            raise ValueError("every line needs a profile, a protocol, a seed and a finite value")
    return frame.drop_duplicates([*CELL, "seed"], keep="last", ignore_index=True)


def open_results(folder: Path, spec: TableSpec) -> TableResults:
    """Read a table from a folder of published results; without a file it has no runs."""
    return TableResults(spec, read_results(folder / f"{spec.table}.csv"))


def write_results(path: Path, results: TableResults) -> None:
    """Write the lines of a table, the whole file or nothing."""
    digits = results.runs["column"].map(results.spec.decimals) + EXTRA_DECIMALS
    values = (f"{value:.{n}f}" for value, n in zip(results.runs["value"], digits, strict=True))
    lines = results.runs.assign(value=[*values])
    write_atomically(path, lines.to_csv(index=False, lineterminator="\n"))


def find_tolerance(
    paper: PaperTable, row: str, key: str, printed: float, data: str
) -> tuple[float, str]:
    """Return how far a printed value may be off, and what that is.

    It is the printed deviation. Without one, it is the error of sampling the tests for an accuracy,
    also where the best of many evaluations is printed; else it is half a unit of the last digit.
    """
    if deviation := paper.find_row(row).std.get(key):
        return float(deviation), "its printed deviation"
    column, tests = paper.columns[key], count_tests(key) or count_tests(data)
    if tests and column.unit == "%" and "accuracy" in column.metric:
        error = math.sqrt(max(printed * (100 - printed), 0) / tests)
        return error, f"the error of sampling {tests:,} tests, as it is printed of one seed"
    digits = len(column.format_value(printed).partition(".")[2])
    return 0.5 * 10.0**-digits, "half a unit of its last digit"


def compare_estimate(
    estimate: MeanDeviation, printed: float, tolerance: float, higher_is_better: bool | None,
    digits: int = 2,
) -> tuple[str, str]:  # fmt: skip
    """Compare an estimate, rounded to the digits that are shown, with a printed value.

    It is `within` if the printed value plus or minus its tolerance meets Student's interval of the
    mean, else `better`, `worse`, or `different` where no direction is better. Also return the side.
    """
    low, high = (round(estimate.mean + s * estimate.half_width, digits) for s in (-1, 1))
    slack = 1e-9 * max(1.0, abs(printed))  # 98.65 + 0.05 is below 98.7
    if low <= printed + tolerance + slack and high >= printed - tolerance - slack:
        return "within", "meets"
    is_above = low > printed
    side = "is above" if is_above else "is below"
    if higher_is_better is None:
        return "different", side
    return "better" if is_above == higher_is_better else "worse", side
