"""The command that makes the index of all printed tables: what is measured, then what there is."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.pages.template import link_file
from experiment_kit.papers.provenance import make_anchors
from experiment_kit.papers.render import escape_markdown, format_rows, render_table
from experiment_kit.papers.results import TableResults, read_results
from experiment_kit.papers.spec import TableSpec, find_spec_files, load_spec
from experiment_kit.papers.values import PaperTable, list_tables, load_table
from experiment_kit.papers.verdicts import NOT_COMPARABLE, Comparison, compare_to_paper
from experiment_kit.run import write_atomically

Place = tuple[str, str]  # a row and a column
MEASURED = ("Table", "Row", "Column", "Printed", "Ours", "Profile, protocol", "Verdict")
COUNTS = ("Table", "Measures", "Printed", "Measured", "Comparable", "Remark")
ABOUT = (
    "Ours is mean ± sample standard deviation (number of seeds), and leads to the runs. A profile "
    "that is not `paper` is smaller than the paper's recipe, and is not compared with it. "
    "`make plan TABLE=<table>` says what a table needs and costs, `make table TABLE=<table>` "
    "makes it."
)
NO_SPEC = {
    "hyperparameters": "it prints settings, which the overlays of the apps have",
    "dataset_statistics": "it prints sizes of data sets; `make list` compares those that are here",
    "significance": "its p-values follow from another table, whose page has ours",
}


@dataclass(frozen=True)
class IndexedTable:
    """A printed table, how it is made, and what was measured; some have no spec, or no results.

    `note` is a sentence on the results of this index.
    """

    paper: PaperTable
    spec: TableSpec | None = None
    results: TableResults | None = None
    note: str = ""

    @cached_property
    def printed_cells(self) -> list[Place]:
        """The row and column of each printed value, without columns that describe a row."""
        columns, rows = self.paper.measurable, self.paper.rows
        return [(r.key, c) for r in rows for c in columns if r.values.get(c) is not None]

    @cached_property
    def comparisons(self) -> dict[tuple[str, str], dict[Place, Comparison]]:
        """The comparisons of the measured cells with the paper, by profile and protocol."""
        settings = self.results.settings if self.results else []
        return {s: compare_to_paper(self.results, *s) for s in settings if self.results}

    @property
    def measured_cells(self) -> set[Place]:
        """The printed cells that were measured, under any profile and protocol."""
        return {place for found in self.comparisons.values() for place in found}

    @property
    def comparable_cells(self) -> set[Place]:
        """The measured cells that can be compared with the paper."""
        every = [pair for found in self.comparisons.values() for pair in found.items()]
        return {place for place, comparison in every if comparison.kind != NOT_COMPARABLE}

    def list_measured(self, page: str) -> Iterator[list[str]]:
        """Yield a line of each printed cell and setting that is measured, in Markdown."""
        results, paper = self.results, self.paper
        if results is None:
            return
        labels, anchors = results.spec.labels(paper), make_anchors(results)
        for (profile, protocol), found in self.comparisons.items():
            rows = dict(format_rows(results, profile, protocol))
            for (row, column), comparison in found.items():
                cell = rows[labels[row]][column]
                names = map(escape_markdown, (labels[row], paper.headings[column], cell.printed))
                anchor = anchors.get((row, profile, protocol), "")
                ours = f"[{cell.measured}]({page}#{anchor})" if page else cell.measured
                setting = escape_markdown(f"{profile}, {protocol}")
                yield [paper.title, *names, ours, setting, comparison.kind]

    def count_cells(self) -> list[str]:
        """Return the counts of the table, as a line for the list of its paper."""
        counts = map(len, (self.printed_cells, self.measured_cells, self.comparable_cells))
        absent = f"no spec: {NO_SPEC.get(self.paper.quantity, 'no app makes it')}"
        remark = self.note or ("" if self.spec else absent)
        return [
            escape_markdown(self.paper.caption),
            *map(str, counts),
            escape_markdown(remark, "|"),
        ]


def make_index(results: str = "docs/results", out: str = "docs/results/index.md") -> None:
    """Write the index of all printed tables: the measured cells, then the counts of each table.

    Args:
        results: the folder of the published tables
        out: the Markdown file that is written
    """
    if not Path(results).is_dir():
        raise UserError(f"--results={results} is no folder: name that of published tables")
    write_index(Path(results), Path(out), Console())


def write_index(
    results: Path, out: Path, console: Console, notes: Mapping[str, str] | None = None
) -> None:
    """Write the index of a folder of results, with notes by table."""
    tables = read_index(results, notes)
    write_atomically(out, render_index(tables, results, out))
    console.print(f"[bold]{escape(str(out))}[/] has {len(tables)} tables")


def read_index(results: Path, notes: Mapping[str, str] | None = None) -> list[IndexedTable]:
    """Read all printed tables, with what a folder of results has of them, and notes by table."""
    specs, tables = find_spec_files(), []
    for name in list_tables():
        paper, found = load_table(name), None
        spec = load_spec(specs[name]) if name in specs else None
        if spec and (path := results / f"{name}.csv").is_file():
            found = TableResults(spec, paper, read_results(path, paper))
        tables.append(IndexedTable(paper, spec, found, (notes or {}).get(name, "")))
    return sorted(tables, key=lambda t: (t.paper.paper, t.paper.kind != "Table", t.paper.number))


def render_index(tables: Sequence[IndexedTable], results: Path, out: Path) -> str:
    """Write the index in Markdown: the measured cells, then a table of counts for each paper."""
    own = {t.paper.id: results / f"{t.paper.id}.md" for t in tables}
    pages = {name: link_file(path, out) for name, path in own.items() if path.is_file()}
    is_beside = results.resolve() == out.parent.resolve()
    # the folder of the site's results has a page on what was measured
    entries = ["measured"] if out.with_name("measured.md").is_file() else []
    entries += [*pages] if is_beside else []
    blocks = ["# All tables", describe_totals(tables), ABOUT]
    if entries:
        blocks.append("\n".join(["```{toctree}", ":hidden:", "", *entries, "```"]))
    measured = [line for t in tables for line in t.list_measured(pages.get(t.paper.id, ""))]
    blocks += ["## What is measured", render_table(MEASURED, measured, 3)] if measured else []
    papers: dict[str, list[IndexedTable]] = {}
    for table in tables:
        papers.setdefault(table.paper.title.partition(" paper, ")[0], []).append(table)
    for name, of_paper in papers.items():
        rows = []
        for table in of_paper:
            title, page = table.paper.title.partition(" paper, ")[2], pages.get(table.paper.id)
            rows.append([f"[{title}]({page})" if page else title, *table.count_cells()])
        source = f"Source: {of_paper[0].paper.citation}."
        blocks += [f"## {name}", source, render_table(COUNTS, rows, 2)]
    return "\n\n".join(blocks) + "\n"


def describe_totals(tables: Sequence[IndexedTable]) -> str:
    """Count the tables, their printed values, the measured ones and the verdicts."""
    values = sum(v is not None for t in tables for row in t.paper.rows for v in row.values.values())
    every = [c for t in tables for found in t.comparisons.values() for c in found.values()]
    kinds = Counter(c.kind for c in every if c.kind != NOT_COMPARABLE)
    verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    printed, measured, comparable = (
        sum(len(cells) for cells in found)
        for found in zip(
            *((t.printed_cells, t.measured_cells, t.comparable_cells) for t in tables), strict=True
        )
    )
    return (
        f"The papers print {values:,} values in {len(tables)} tables and figures; {printed:,} of "
        f"them can be measured, the others describe a row. {sum(bool(t.spec) for t in tables)} "
        f"tables have a spec, from which `make table` makes them. {measured:,} printed cells are "
        f"measured under some profile and protocol, {comparable} so that they can be compared with "
        f"the paper. Verdicts on these: {verdicts}."
    )
