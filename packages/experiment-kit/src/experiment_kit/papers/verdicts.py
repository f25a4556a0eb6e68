"""Statistics of a table: intervals over seeds, the comparison with the paper, paired tests."""

from collections.abc import Sequence

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.results import MIN_SEEDS, TableResults
from experiment_kit.papers.spec import Reference
from experiment_kit.papers.values import load_table

Lines = list[list[str]]  # one a row, the heading first
HEAD = "method", "column", "ours", "Student's t", "verdict"
MIN_PAIRS = 6  # with fewer pairs no two-sided exact p-value is below 0.05
EXPLANATION = (
    "Intervals are Student's of 95 %, of the mean over seeds; three seeds make them wide, fewer "
    "have none, and no verdict. The printed value is taken with its printed deviation, an accuracy "
    "without one with the error of sampling its tests, and others with half a unit of their last "
    "digit; within says that the two meet, and no more."
)
_PAIRS = (
    "{} less each row, paired by seed: the mean difference, Student's 95 % interval of it, and the "
    "number of seeds that both have. An interval with 0 tells no difference; many of them are "
    "compared here, and none is corrected for that."
)
_TESTS = (
    "Two-sided Wilcoxon signed-rank test of {} against each row, over the n columns that both "
    "have; the one-sided p-value is half of it or, where the row is the better one, one minus that."
)


def list_statistics(results: TableResults, profile: str, protocol: str) -> dict[str, Lines]:
    """Return the tables beside the results of a setting that have a line, by their captions."""
    tables = {"Statistics of each measured cell.": format_statistics(results, profile, protocol)}
    if reference := results.spec.significance:
        label = results.spec.labels[reference.row]
        tables[_PAIRS.format(label)] = format_pairs(results, reference.row, profile, protocol)
        tables[_TESTS.format(label)] = format_tests(results, reference, profile, protocol)
    return {caption: lines for caption, lines in tables.items() if len(lines) > 1}


def format_statistics(results: TableResults, profile: str, protocol: str) -> Lines:
    """Return interval and comparison of each measured cell of a setting, computed ones last."""
    paper, spec = results.paper, results.spec
    lines = [[*HEAD]]
    cells = results.list_cells(profile, protocol)
    for cell in sorted(cells, key=lambda cell: cell.key not in spec.columns):
        if cell.estimate:
            interval = cell.estimate.format_interval(cell.digits)
            texts = [cell.ours, interval if cell.estimate.count >= MIN_SEEDS else MISSING]
            verdict = f"{cell.kind}: {cell.reason}" if cell.kind else "no printed value"
            lines.append([spec.labels[cell.row], paper.headings[cell.key], *texts, verdict])
    return lines


def format_pairs(results: TableResults, reference: str, profile: str, protocol: str) -> Lines:
    """Return the differences of a row to the others over shared seeds."""
    spec, paper, labels = results.spec, results.paper, results.spec.labels
    runs = results.select_runs(profile, protocol)
    wide = runs.pivot(index=["column", "seed"], columns="row", values="value")
    wide = wide.reindex(columns=[*labels]).dropna(subset=reference)
    columns = [c for c in paper.columns if c in wide.index.get_level_values(0)]
    lines = [["method", *(paper.headings[column] for column in columns)]]
    for row in (row for row in labels if row != reference):
        found = (wide[reference] - wide[row]).dropna().groupby("column").agg(list)
        texts = [MISSING] * len(columns)
        for i, column in enumerate(columns):
            if len(differences := found.get(column, [])) > 1:
                pair, digits = MeanDeviation.from_values(differences), spec.decimals[column]
                mean, interval = round(pair.mean, digits) + 0.0, pair.format_interval(digits, "+")
                text = f"{mean:+.{digits}f} ({interval}; {pair.count})"
                texts[i] = text.replace("-", "−")
        lines += [[labels[row], *texts]] if {*texts} - {MISSING} else []
    return lines


def format_tests(results: TableResults, reference: Reference, profile: str, protocol: str) -> Lines:
    """Return the p-values of the reference row against the others."""
    spec, labels = results.spec, results.spec.labels
    lines = [["against", "n", "p", "printed p", "variant"]]
    printed = load_table(reference.table)
    means = results.list_means(profile, protocol)
    for row in (row for row in labels if row != reference.row):
        pairs = [(means.get((reference.row, c)), means.get((row, c))) for c in spec.columns]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if test := signed_rank(differences):
            value = printed.printed_value(row, next(iter(printed.columns)))
            texts = [f"{test[0]:.3f}", MISSING if value is None else f"{value:.3f}", test[1]]
            lines.append([labels[row], str(len(differences)), *texts])
    return lines


def signed_rank(differences: Sequence[float]) -> tuple[float, str] | None:
    """Return the two-sided p-value and its variant: exact, unless a difference is zero.

    This rule reproduces the AGF paper's Table 13 from its Table 1. Tied differences share their
    rank, and the exact distribution is that of ranks without ties. Zeros are dropped
    (`zero_method="wilcox"`), and the p-value is then the normal approximation. None for fewer than
    six pairs, or no difference.

    >>> signed_rank([0.1, 0.4, -0.2, 0.8, 1.6, 3.2])
    (0.09375, 'exact')
    """
    rounded = [round(d, 6) for d in differences]  # 0.3 - 0.2 ties with 0.2 - 0.1
    zeros = rounded.count(0.0)
    if len(rounded) < MIN_PAIRS or zeros == len(rounded):
        return None
    from scipy.stats import wilcoxon  # takes seconds to import; most tables have too few pairs

    method = "approx" if zeros else "exact"
    result = wilcoxon(rounded, zero_method="wilcox", alternative="two-sided", method=method)
    if zeros:
        method = f"normal approximation without continuity correction, zeros dropped ({zeros})"
    elif len(rounded) > len({abs(d) for d in rounded}):
        method = "exact, of ranks as if none were tied"
    return float(result.pvalue), method
