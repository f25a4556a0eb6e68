"""The statistics of a table as text: intervals, verdicts, paired tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from experiment_kit.papers.render import format_estimate
from experiment_kit.papers.results import TableResults, select_setting
from experiment_kit.papers.significance import compare_rows
from experiment_kit.papers.verdicts import (
    Interval,
    bootstrap_interval,
    compare_paired_seeds,
    estimate_cells,
    judge_cells,
    list_values,
    student_interval,
)

ABSENT = "–"
EXPLANATION = (
    "Intervals are of 95 %, of the mean over seeds. Student's, which decides verdicts, is wide for "
    "two or three seeds. A percentile bootstrap over seeds stands beside it: it never leaves their "
    "range, which holds the mean one time in two for two seeds, and three in four for three. The "
    "printed value is taken with its printed deviation, or half a unit of its last digit; within "
    "says that the two meet, and no more."
)


@dataclass(frozen=True)
class FormattedTable:
    """A table beside the results as text."""

    caption: str
    head: list[str]
    body: list[list[str]]


def format_statistics(results: TableResults, profile: str, protocol: str) -> FormattedTable:
    """Return interval, printed value and verdict of each measured cell of a setting."""
    paper, spec = results.paper, results.spec
    labels, decimals = spec.labels(paper), spec.decimals(paper)
    verdicts = judge_cells(results, profile, protocol)
    body = []
    for (row, column), estimate in estimate_cells(results, profile, protocol).items():
        digits = decimals[column]
        values = list_values(results, row, column, profile, protocol)
        verdict = verdicts.get((row, column))
        body.append(
            [
                labels.get(row, row),
                paper.headings[column],
                format_estimate(estimate, digits),
                _format_interval(student_interval(estimate), digits),
                _format_interval(bootstrap_interval(values) if values else None, digits),
                f"{verdict.kind}: {verdict.reason}" if verdict else "no printed value",
            ]
        )
    head = ["method", "column", "ours", "Student's t", "bootstrap", "verdict"]
    return FormattedTable("Statistics of each measured cell.", head, body)


def _format_interval(interval: Interval | None, digits: int) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ABSENT
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def format_tests(results: TableResults, profile: str, protocol: str) -> FormattedTable | None:
    """Return the p-values of the reference row against the others; None if there are none."""
    tests = [
        test
        for test in compare_rows(results)
        if (test.profile, test.protocol) == (profile, protocol) and test.p_value is not None
    ]
    if not tests or results.spec.significance is None:
        return None
    labels = results.spec.labels(results.paper)
    printed = [ABSENT if t.printed is None else f"{t.printed:.3f}" for t in tests]
    return FormattedTable(
        f"Two-sided Wilcoxon signed-rank test of {labels[results.spec.significance.row]} against "
        "each row, over the n columns that both have; the one-sided p-value is half of it or, "
        "where the row is the better one, one minus that.",
        ["against", "n", "p", "printed p", "variant"],
        [
            [labels.get(t.row, t.row), str(t.n), f"{t.p_value:.3f}", text, t.method]
            for t, text in zip(tests, printed, strict=True)
        ],
    )


def format_pairs(results: TableResults, profile: str, protocol: str) -> FormattedTable | None:
    """Return the differences of the reference row to the others over the seeds that both have.

    None where the spec has no reference row, or no pair of rows shares two seeds.
    """
    spec, paper = results.spec, results.paper
    if spec.significance is None:
        return None
    labels, reference = spec.labels(paper), spec.significance.row
    seeds = _collect_seeds(results, profile, protocol)
    columns = [c for c in paper.columns if (reference, c) in seeds]
    rows = [r for r in labels if r != reference and any((r, c) in seeds for c in columns)]
    decimals = spec.decimals(paper)
    body = [
        [labels[row], *(_format_pair(seeds, reference, row, c, decimals[c]) for c in columns)]
        for row in rows
    ]
    if all(text == ABSENT for line in body for text in line[1:]):
        return None
    return FormattedTable(
        f"{labels[reference]} less each row, paired by seed: the mean difference, Student's 95 % "
        "interval of it, and the number of seeds that both have. An interval with 0 tells no "
        "difference; many of them are compared here, and none is corrected for that.",
        ["method", *(paper.headings[column] for column in columns)],
        body,
    )


def _collect_seeds(
    results: TableResults, profile: str, protocol: str
) -> dict[tuple[str, str], dict[int, float]]:
    """Return the values of each cell of a setting by seed."""
    runs = select_setting(results.runs, profile, protocol)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row, column, seed, value in runs[["row", "column", "seed", "value"]].itertuples(
        index=False
    ):
        found.setdefault((row, column), {})[seed] = value
    return found


def _format_pair(
    seeds: Mapping[tuple[str, str], Mapping[int, float]],
    reference: str,
    row: str,
    column: str,
    digits: int,
) -> str:
    pair = compare_paired_seeds(seeds[reference, column], seeds.get((row, column), {}))
    if pair is None or pair.low is None or pair.high is None:
        return ABSENT
    mean, low, high = (
        f"{round(x, digits) + 0.0:+.{digits}f}" for x in (pair.mean, pair.low, pair.high)
    )
    return f"{mean} ({low} to {high}; {pair.count})".replace("-", "−")
