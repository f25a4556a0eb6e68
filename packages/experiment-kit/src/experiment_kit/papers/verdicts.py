"""Statistics of a table: intervals over seeds, the comparison with the paper, paired tests."""

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.results import MIN_SEEDS, TableResults

Lines = list[list[str]]  # one a row, the heading first
HEAD = "method", "column", "ours", "Student's t", "verdict"
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
    "have: exact, or by the normal approximation without zeros where a difference is zero."
)
MIN_PAIRS = 6  # with fewer no two-sided exact p-value is below 0.05


def list_statistics(results: TableResults, profile: str, protocol: str) -> dict[str, Lines]:
    """Return the tables beside the results of a setting that have a line, by their captions."""
    tables = {"Statistics of each measured cell.": format_statistics(results, profile, protocol)}
    if reference := results.spec.reference:
        for caption, make in ((_PAIRS, format_pairs), (_TESTS, format_tests)):
            lines = make(results, reference, profile, protocol)
            tables[caption.format(results.spec.labels[reference])] = lines
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


def format_tests(results: TableResults, reference: str, profile: str, protocol: str) -> Lines:
    """Return the p-values of a row against the others, by their means in each column."""
    spec, lines = results.spec, [["against", "n", "p"]]
    cells = results.list_cells(profile, protocol)
    means = {(c.row, c.key): round(c.estimate.mean, c.digits) for c in cells if c.estimate}
    for row in (row for row in spec.labels if row != reference):
        pairs = [(means.get((reference, c)), means.get((row, c))) for c in spec.columns]
        # 0.3 - 0.2 ties with 0.2 - 0.1
        differences = [round(a - b, 6) for a, b in pairs if a is not None and b is not None]
        if len(differences) >= MIN_PAIRS and any(differences):
            from scipy.stats import wilcoxon  # takes seconds to import; most tables have few pairs

            method = "approx" if 0 in differences else "exact"
            p = wilcoxon(differences, zero_method="wilcox", method=method).pvalue
            lines.append([spec.labels[row], str(len(differences)), f"{p:.3f}"])
    return lines
