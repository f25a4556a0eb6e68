"""The command that makes the index of all printed tables: first the measured cells."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from experiment_kit.errors import UserError
from experiment_kit.pages.tables import link_file
from experiment_kit.papers.provenance import list_sections
from experiment_kit.papers.render import escape_markdown, render_table
from experiment_kit.papers.results import NOT_COMPARABLE, CellResult, TableResults, open_results
from experiment_kit.papers.spec import ALL, find_tables
from experiment_kit.papers.values import PaperTable, read_tables
from experiment_kit.run_files import write_atomically

MEASURED = ("Table", "Row", "Column", "Printed", "Ours", "Profile, protocol", "Verdict")
COUNTS = ("Table", "Measures", "Protocol", "Remark", "Printed", "Measured", "Comparable")
ABOUT = (
    "Ours is mean ± sample standard deviation (number of seeds), and leads to the runs. A cell is "
    "comparable by the paper's recipe and protocol, of committed code, with three seeds or more, "
    "or as a count of parameters or multiply-adds. `make plan TABLE=<table>` says what a table "
    "needs and costs, and `make table TABLE=<table> SEED=0,1,2` makes it, by the paper's protocol: "
    "most papers have one seed, which has no verdict."
)
CHECKED = {
    "hyperparameters": "checked: tests compare the merged configs with its settings",
    "dataset_statistics": "no spec: sizes of data sets, which no run makes",
    "significance": "checked: a test recomputes its p-values from the printed accuracies",
}


@dataclass(frozen=True)
class IndexedTable:
    """A printed table with its results, if it has a spec, and a sentence on them."""

    paper: PaperTable
    results: TableResults | None
    note: str

    @cached_property
    def cells(self) -> list[tuple[tuple[str, str], CellResult]]:
        """Each printed cell that is measured, with its profile and protocol; computed ones last."""
        if self.results is None:
            return []
        conditions, columns = self.results.conditions, self.results.spec.columns
        cells = [(s, c) for s in conditions for c in self.results.compare_cells(*s) if c.kind]
        return sorted(cells, key=lambda pair: pair[1].key not in columns)

    @cached_property
    def counts(self) -> list[int]:
        """The numbers of printed cells, of measured ones, and of those that can be compared."""
        columns, rows = self.paper.measurable, self.paper.rows
        printed = [c for row in rows for c in columns if row.values.get(c) is not None]
        measured = {(cell.row, cell.key) for _, cell in self.cells}
        comparable = {(cell.row, cell.key) for _, cell in self.cells if cell.kind != NOT_COMPARABLE}
        return [*map(len, (printed, measured, comparable))]

    @property
    def names(self) -> tuple[str, str]:
        """The names of the paper and of the table in it."""
        paper, _, table = self.paper.title.partition(" paper, ")
        return paper, table

    def list_counts(self, page: str) -> list[str]:
        """Return the line of the table in the counts of its paper, in Markdown."""
        absent = CHECKED.get(self.paper.quantity, "no spec: no app makes it")
        remark = self.note or ("" if self.results else absent)
        name = f"[{self.names[1]}]({page})" if page else self.names[1]
        protocol = self.results.spec.protocol if self.results else ""
        counts = map(str, self.counts if self.results else ["", "", ""])
        texts = escape_markdown(self.paper.caption), protocol, escape_markdown(remark, "|")
        return [name, *texts, *counts]

    def list_measured(self, page: str) -> Iterator[list[str]]:
        """Yield a line of each printed cell and setting that is measured, in Markdown."""
        if self.results is None:
            return
        labels, sections = self.results.spec.labels, list_sections(self.results)
        for setting, cell in self.cells:
            place = labels[cell.row], self.paper.headings[cell.key], cell.printed
            link = f"[{cell.ours}]({page}#{sections[*setting, cell.row].anchor})"
            verdict = ", ".join(setting), f"{cell.kind}: {cell.reason}"
            before, after = (map(escape_markdown, texts) for texts in (place, verdict))
            yield [self.paper.title, *before, link if page else cell.ours, *after]


def make_index(results: str = "docs/results", out: str = "docs/results/index.md") -> None:
    """Write the index of all printed tables: the measured cells, then the counts of each table.

    Args:
        results: the folder of the published tables
        out: the Markdown file that is written
    """
    if not Path(results).is_dir():
        raise UserError(f"--results={results} is no folder: name that of published tables")
    write_index(Path(results), Path(out), {})


def write_index(results: Path, out: Path, notes: Mapping[str, str]) -> None:
    """Write the index of a folder of results, with notes by table."""
    tables = read_indexed_tables(results, notes)
    write_atomically(out, render_index(tables, results, out))
    print(f"{out} has {len(tables)} tables")


def read_indexed_tables(results: Path, notes: Mapping[str, str]) -> list[IndexedTable]:
    """Read all printed tables, with their results in a folder, and notes by table."""
    found = {spec.table: open_results(results, spec) for spec in find_tables(ALL)}
    ordered = sorted(read_tables().values(), key=lambda p: (p.paper, p.kind != "Table", p.number))
    return [IndexedTable(p, found.get(p.id), notes.get(p.id, "")) for p in ordered]


def render_index(tables: Sequence[IndexedTable], results: Path, out: Path) -> str:
    """Write the index in Markdown: the measured cells, then a table of counts for each paper."""
    own = {t.paper.id: results / f"{t.paper.id}.md" for t in tables}
    pages = {name: link_file(path, out) for name, path in own.items() if path.is_file()}
    # the folder of the site's results has a page on what was measured
    entries = ["measured"] if out.with_name("measured.md").is_file() else []
    entries += [*pages] if results.resolve() == out.parent.resolve() else []
    blocks = ["# All tables", describe_finding(tables), ABOUT]
    if entries:
        blocks.append("\n".join(["```{toctree}", ":hidden:", "", *entries, "```"]))
    measured = [line for t in tables for line in t.list_measured(pages.get(t.paper.id, ""))]
    if measured:
        blocks += ["## What is measured", render_table(MEASURED, measured, len(MEASURED))]
    for (name, citation), group in groupby(tables, lambda t: (t.names[0], t.paper.citation)):
        lines = [t.list_counts(pages.get(t.paper.id, "")) for t in group]
        blocks += [f"## {name}", f"Source: {citation}.", render_table(COUNTS, lines, 4)]
    return "\n\n".join(blocks) + "\n"


def describe_finding(tables: Sequence[IndexedTable]) -> str:
    """Say what is reproduced, what is not and why, from the verdicts of all tables."""
    found = Counter(cell.kind for t in tables for _, cell in t.cells)
    del found[NOT_COMPARABLE]
    verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    printed, measured, comparable = map(sum, zip(*(t.counts for t in tables), strict=True))
    made = sum(bool(t.results) for t in tables)
    none = "None of the printed numbers is reproduced or refuted yet"
    some = f"{comparable} of {printed:,} printed numbers are compared with the papers ({verdicts})"
    return (
        f"**{some if comparable else none}.** The papers print {printed:,} numbers in "
        f"{len(tables)} tables and figures. {made} of these have a spec from which they are made, "
        f"by configs that are checked against paper and code; {measured:,} cells are measured, "
        f"and {comparable} of these can be compared. Most others need GPUs, or data that must be "
        "had by hand: a seed takes ten minutes of a core to some hundred hours of an A100."
    )
