"""The page of a comparison: numbers, figures, settings and files of the runs side by side."""

import re
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean

from experiment_kit.commands.compare import ABOUT, collect_numbers, format_mean
from experiment_kit.pages.records import RunRecord
from experiment_kit.pages.run_figures import draw_figures
from experiment_kit.pages.run_settings import compare_settings, list_runs
from experiment_kit.pages.tables import Cell, Estimate, PageTable, find_best
from experiment_kit.pages.template import write_page

TEMPLATE = Path(str(files("experiment_kit.pages"))) / "templates" / "compare.html"
_HIGHER = re.compile(
    r"accuracy|score|f1|matthews|pearson|spearman|auroc|precision|recall|samples/s"
)
_LOWER = re.compile(r"loss|error|wer|cer|mae|perplexity|bits")
MARKED = (
    "Bold is best in its column: its 95 % confidence interval (Student's t over seeds) overlaps "
    "that of no other method."
)
UNMARKED = (
    "No value is bold: none has a 95 % confidence interval (Student's t over seeds, so two seeds "
    "or more) that overlaps that of no other method."
)


def write_comparison_page(
    path: Path, title: str, command: str, methods: Sequence[str], records: Sequence[RunRecord]
) -> None:
    """Write the page of methods, of which some may have no finished run."""
    labels = {method: method for method in methods}
    write_page(
        path,
        TEMPLATE,
        title=title,
        about=ABOUT,
        command_lines=[command],
        results=tabulate_methods(methods, records),
        figure_set=draw_figures(records, labels, title),
        settings=compare_settings(records, labels),
        runs=list_runs(records, labels, path),
    )


def tabulate_methods(methods: Sequence[str], records: Sequence[RunRecord]) -> PageTable:
    """Return a row of means for each method, the best of a column in bold."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name, value in collect_numbers(record).items():
            found[name][record.label].append(value)
    best = {name: _find_best(name, values) for name, values in found.items()}
    rows = [
        [
            Cell(method),
            *(
                Cell(
                    format_mean(values[method]),
                    fmean(values[method]) if values[method] else None,
                    is_best=method == best[name],
                )
                for name, values in found.items()
            ),
        ]
        for method in methods
    ]
    note = MARKED if any(best.values()) else UNMARKED
    return PageTable("results", ["method", *found], rows, note if len(methods) > 1 else "")


def _find_best(name: str, values: dict[str, list[float]]) -> str | None:
    estimates = {method: Estimate.from_values(v) for method, v in values.items() if v}
    return find_best(estimates, is_higher_better(name))


def is_higher_better(name: str) -> bool | None:
    """Return the direction of a metric by its name; None where it has none or is not known.

    >>> [is_higher_better(name) for name in ("accuracy", "loss", "parameters")]
    [True, False, None]
    """
    if _LOWER.search(name):
        return False
    return True if _HIGHER.search(name) else None
