"""A table for the terminal, and its page in Markdown: the numbers, their statistics, their runs."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from experiment_kit.pages.tables import MISSING, MeanDeviation
from experiment_kit.papers.provenance import RUNS, list_sections, read_runs, tabulate_section
from experiment_kit.papers.results import CITED, MIN_SEEDS, TableResults
from experiment_kit.papers.spec import PAPER, SELECTED

_IN_CODE = "`"  # ends it
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
    "have: exact, without zeros."
)
MIN_PAIRS = 6  # with fewer no two-sided exact p-value is below 0.05
PROFILES = {
    "paper": "the paper's recipe at its full scale",
    "small": "a reduced scale that takes minutes on two CPU cores, not the paper's recipe",
    "smoke": "seconds of training, which shows that the code runs and measures nothing",
}
PROTOCOLS = {
    "validation": "an epoch is chosen, where one is, on data held out of the training set; the "
    "test set chooses nothing",
    "test": "nothing is held out and the test set itself is scored at every validation; where the "
    "best epoch is reported, the number is an upper bound",
    "published": "splits, scoring, quirks and seeds of the code that the authors released",
}
SOURCES = {"text": "the paper's text", "released": "the released code"}
_RUNS = (
    "One line a seed. `allpass config --run=<hash>` prints the config of a run, "
    "which alone reruns the experiment; its line in [{runs}]({runs}) also has the result with its "
    "digest, the environment of each start, and training curves. `git show <commit>` has the code; "
    "a commit that ends in -modified had changes that were not committed."
)


def describe_cells(results: TableResults) -> str:
    """Explain the numbers of a cell, and name the rows that are cited."""
    paper, labels = results.paper, results.spec.labels
    points = {paper.columns[key].unit for key in paper.measurable} == {"%"}
    cited = [f"{labels[row]} ({source})" for row, source in results.spec.cited.items()]
    return (
        "Each cell is our mean ± sample standard deviation (number of seeds), then the value that "
        f"the paper prints and our difference to it{' in points' if points else ''}; "
        f"{MISSING} is not measured."
    ) + (f" Rows that no library has are {CITED}: {'; '.join(cited)}." if cited else "")


def format_commands(results: TableResults, profile: str, protocol: str) -> list[str]:
    """Return the calls of make that measure the cells of a setting, one for alike rows."""
    runs, spec = results.select_runs(profile, protocol), results.spec
    runs = runs[runs["row"].isin([*spec.labels]) & runs["column"].isin([*spec.columns])]
    setting = f" PROFILE={profile}" if profile != PAPER else ""
    setting += f" PROTOCOL={protocol}" if protocol != spec.protocol else ""
    rows = runs["row"].str
    runs = runs.assign(select=rows.endswith(SELECTED), row=rows.removesuffix(SELECTED))
    # the columns of each row that have the same seeds, then the rows that have the same columns
    for keys, name in ((["row", "column"], "seed"), (["row", "seed"], "column"),
                       (["column", "seed"], "row")):  # fmt: skip
        runs = runs.groupby(["select", *keys], sort=False)[name].agg(tuple).reset_index()
    return [
        f"make table TABLE={spec.table}{setting}{' SELECT=true' * g.select} "
        f'SEED={",".join(map(str, g.seed))} ARGS="--rows=[{",".join(g.row)}] '
        f'--columns=[{",".join(g.column)}]"'
        for g in runs.itertuples()
    ]


def print_table(
    results: TableResults, profile: str, protocol: str, console: Console, columns: Sequence[str]
) -> None:
    """Print the measured cells of a profile and protocol with their verdicts; () is all columns."""
    paper, labels = results.paper, results.spec.labels
    names = *HEAD[:3], "printed", "difference", "verdict"
    head = (Column(name, overflow="fold") for name in names)
    table = Table(*head, title=escape(f"{paper.title} · {profile} · {protocol}"))
    for cell in results.compare_cells(profile, protocol):
        if cell.estimate and cell.key in (columns or paper.columns):
            verdict = f"{cell.kind}: {cell.reason}" if cell.kind else ""
            place = labels[cell.row], paper.headings[cell.key]
            table.add_row(*map(escape, (*place, cell.ours, cell.printed, cell.difference, verdict)))
    text = f"no cell of {profile}, {protocol} is measured"
    console.print(table if table.row_count else text, soft_wrap=False)


def render_markdown(results: TableResults, out: Path) -> str:
    """Write the page of a table in the folder of its published runs."""
    spec, paper = results.spec, results.paper
    blocks = [f"# {paper.title}", paper.caption, f"Source: {paper.citation}."]
    source = f"The paper's protocol is `{spec.protocol}`, with which alone its numbers compare. "
    source += f"They follow {SOURCES[spec.source]}: {spec.reason}."
    if spec.others:
        source += f" Rows that end in ({spec.other_source}) follow {SOURCES[spec.other_source]}."
    blocks += [source, escape_markdown(describe_cells(results))]
    blocks += [spec.remark] if spec.remark else []
    if spec.differences:
        rows = [[subject, *values] for subject, values in spec.differences.items()]
        blocks.append(render_table(["", "text", "released code", "here"], rows, 4))
    blocks += [EXPLANATION] if results.conditions else []
    for condition in results.conditions:
        blocks += _render_condition(results, *condition)
    if results.conditions:
        blocks += ["## Runs", _RUNS.format(runs=RUNS)]
        published = read_runs(out)
        for section in list_sections(results).values():
            head, *rows = tabulate_section(results, section.runs, published)
            table = render_table(head, [[*map(escape_markdown, row)] for row in rows])
            blocks += [f"### {escape_markdown(section.heading)}", table]
    else:
        blocks.append(f"Nothing has been measured yet: `make table TABLE={spec.table}`.")
    if paper.notes:
        blocks += ["## Notes on the printed values", "\n".join(f"- {n}" for n in paper.notes)]
    return "\n\n".join(blocks) + "\n"


def _render_condition(results: TableResults, profile: str, protocol: str) -> Iterator[str]:
    """Yield the section of a profile and protocol; each of our numbers leads to its runs."""
    names = (escape_markdown(name, _IN_CODE) for name in (profile, protocol))
    yield "## Profile `{}`, protocol `{}`".format(*names)
    scale = PROFILES.get(profile, "see its overlay")
    scored = (PROTOCOLS | results.spec.protocols).get(protocol, "see its overlay")
    yield escape_markdown(f"Profile {profile}: {scale}. Protocol {protocol}: {scored}.")
    commands = format_commands(results, profile, protocol)
    yield "\n".join(["```", *(escape_markdown(line, _IN_CODE) for line in commands), "```"])
    paper, labels = results.paper, results.spec.labels
    head = ["method", *(paper.headings[key] for key in paper.measurable)]
    body, sections = [], list_sections(results)
    for row, group in groupby(results.compare_cells(profile, protocol), attrgetter("row")):
        own, section = [*group], sections.get((profile, protocol, row))
        if not any(cell.printed or cell.estimate for cell in own):
            continue
        line = [escape_markdown(labels[row])]
        for cell in own:
            link = f"[{cell.ours}](#{section.anchor})" if section and cell.estimate else cell.ours
            difference = f" ({cell.difference})" if cell.difference else ""
            line.append(f"{link}<br>{cell.printed}{difference}" if cell.printed else link)
        body.append(line)
    yield render_table([*map(escape_markdown, head)], body)
    for caption, lines in list_statistics(results, profile, protocol).items():
        head, *rows = ([*map(escape_markdown, line)] for line in lines)
        yield from (escape_markdown(caption), render_table(head, rows))


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
    cells = results.compare_cells(profile, protocol)
    for cell in sorted(cells, key=lambda cell: cell.key not in spec.columns):
        if cell.estimate:
            has_interval = cell.estimate.count >= MIN_SEEDS
            interval = cell.estimate.format_interval(cell.digits) if has_interval else MISSING
            verdict = f"{cell.kind}: {cell.reason}" if cell.kind else "no printed value"
            place = spec.labels[cell.row], paper.headings[cell.key]
            lines.append([*place, cell.ours, interval, verdict])
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
                if round(pair.half_width, digits) == 0:
                    interval = "the same in each seed"
                interval = f"{interval}; " if pair.count >= MIN_SEEDS else ""
                texts[i] = f"{mean:+.{digits}f} ({interval}{pair.count})".replace("-", "−")
        lines += [[labels[row], *texts]] if {*texts} - {MISSING} else []
    return lines


def format_tests(results: TableResults, reference: str, profile: str, protocol: str) -> Lines:
    """Return the p-values of a row against the others, by their means in each column."""
    spec, lines = results.spec, [["against", "n", "p"]]
    cells = results.compare_cells(profile, protocol)
    means = {(c.row, c.key): round(c.estimate.mean, c.digits) for c in cells if c.estimate}
    for row in (row for row in spec.labels if row != reference):
        pairs = [(means.get((reference, c)), means.get((row, c))) for c in spec.columns]
        # 0.3 - 0.2 ties with 0.2 - 0.1
        differences = [round(a - b, 6) for a, b in pairs if a is not None and b is not None]
        if len(changes := [x for x in differences if x]) >= MIN_PAIRS:
            from scipy import stats  # takes seconds to import; most tables have few pairs

            # every choice of the signs, which is exact with ties too
            p = stats.wilcoxon(changes, method=stats.PermutationMethod(math.inf)).pvalue
            lines.append([spec.labels[row], str(len(differences)), f"{p:.3f}"])
    return lines


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Write a Markdown table whose first columns are aligned to the left."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def escape_markdown(text: str, characters: str = "|`[]") -> str:
    """Escape what a name must not bring into a page: HTML, cells, code, links, lines."""
    codes = {ord(c): f"&#{ord(c)};" for c in characters} | {ord("<"): "&lt;", ord(">"): "&gt;"}
    return " ".join(text.split()).translate(codes)
