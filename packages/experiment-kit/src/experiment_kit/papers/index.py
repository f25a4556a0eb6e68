"""The command that makes the index: all printed tables on one page, paper and measured."""

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.launch.options import make_folders
from experiment_kit.launch.plan import find_data
from experiment_kit.pages.tables import Cell, PageTable
from experiment_kit.pages.template import link_file, write_page
from experiment_kit.papers.index_tables import (
    IndexedCell,
    IndexedTable,
    Place,
    count_cells,
    describe_totals,
    group_by_paper,
    read_index,
)
from experiment_kit.papers.markdown import link_from, render_table
from experiment_kit.papers.render import escape_markdown
from experiment_kit.run import write_atomically

TEMPLATE = Path(str(files("experiment_kit.papers"))) / "templates" / "index.html"
HEAD = ("Table", "Measures", "Printed", "Measured", "Comparable", "Spec")
ABOUT = (
    "A cell has the printed value, then ours: mean ± sample standard deviation (number of seeds), "
    "the letter of its profile and protocol, and the verdict where it can be compared with the "
    "paper. `make plan` says what a table costs here and on a GPU."
)
NO_SPEC = {
    "hyperparameters": "it prints settings, which the overlays of the apps have",
    "dataset_statistics": "it prints sizes of data sets; `make list` compares those that are here",
    "significance": "its p-values follow from another table, whose page has ours",
}


def make_index(
    results: str = "docs/results", out: str = "docs/results/index.md", folder: str = "runs"
) -> None:
    """Write the index of all printed tables, as Markdown and as a page of HTML.

    The page is `<folder>/reports/index.html`; it also says which data is here.

    Args:
        results: the folder of the published tables
        out: the Markdown file that is written; its name ends in .md
        folder: the folder of the runs, in which the page is written
    """
    if not Path(results).is_dir():
        raise UserError(f"--results={results} is no folder: name that of published tables")
    if Path(out).suffix != ".md":
        raise UserError(f"--out={out}: name a file that ends in .md")
    make_folders(out=str(Path(out).parent), folder=folder)
    write_index(Path(results), Path(out), Path(folder) / "reports" / "index.html", Console())


def write_index(
    results: Path,
    out: Path,
    page: Path,
    console: Console,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write both forms of the index of a folder of results, with notes by table."""
    tables = read_index(results, notes)
    write_atomically(out, render_index(tables, results, out))
    needed = sorted({place for table in tables for place in table.needed_data})
    write_index_page(page, tables, results, {place: find_data(*place) for place in needed})
    console.print(f"{escape(str(out))} and [bold]{escape(str(page))}[/] have {len(tables)} tables")


def explain_absent_spec(table: IndexedTable) -> str:
    """Say why a table has no spec."""
    return NO_SPEC.get(table.paper.quantity, "no app makes it")


def list_commands(table: IndexedTable) -> list[str]:
    """List the commands that obtain what a table lacks, say what it costs, and make it."""
    if table.spec is None:
        return []
    data = dict.fromkeys(name for _, name in table.needed_data)
    weights = dict.fromkeys(name for _, name in table.needed_weights)
    protocol = "test" if "test" in table.spec.all_protocols else next(iter(table.spec.protocols))
    commands = [f"make data DATA={shlex.quote(name)}" for name in data]
    commands += [f"make weights MODEL={shlex.quote(name)}" for name in weights]
    chosen = f"TABLE={table.spec.table} PROTOCOL={protocol}"
    return [*commands, f"make plan {chosen}", f"make table {chosen}"]


def describe_missing(table: IndexedTable) -> str:
    """Say how many printed cells are not comparable yet."""
    missing = len({*table.printed_cells} - table.comparable_cells)
    return f"{count_cells(missing)} of {len(table.printed_cells)} not comparable yet"


def render_index(tables: Sequence[IndexedTable], results: Path, out: Path) -> str:
    """Write the index in Markdown: a table of tables, then every table."""
    papers = group_by_paper(tables)
    ordered = [table.paper.id for of_paper in papers.values() for table in of_paper]
    pages = [name for name in ordered if (results / f"{name}.md").is_file()]
    # the folder of the site's results has a page on what was measured
    first = ["measured"] if out.with_name("measured.md").is_file() else []
    is_beside = results.resolve() == out.parent.resolve()
    toctree = ["```{toctree}", ":hidden:", "", *first, *(pages if is_beside else []), "```"]
    blocks = ["# All tables", describe_totals(tables), ABOUT]
    blocks += ["\n".join(toctree)] if first or (is_beside and pages) else []
    overview = [_escape_cells(_summarize_table(table)) for of in papers.values() for table in of]
    links = [f"[{cells[0]}](#{_make_anchor(cells[0])})" for cells in overview]
    rows = [[link, *cells[1:]] for link, cells in zip(links, overview, strict=True)]
    blocks.append(render_table(HEAD, rows, left=2))
    for name, of_paper in papers.items():
        blocks += [f"## {name}", f"Source: {of_paper[0].paper.citation}."]
        for table in of_paper:
            own = results / f"{table.paper.id}.md"
            page = link_from(out.parent, own) if own.is_file() else ""
            blocks += _render_table(table, page)
    return "\n\n".join(blocks) + "\n"


def _summarize_table(table: IndexedTable) -> list[str]:
    counts = map(len, (table.printed_cells, table.measured_cells, table.comparable_cells))
    has_spec = "yes" if table.spec else "no"
    return [table.paper.title, table.paper.caption, *map(str, counts), has_spec]


def _render_table(table: IndexedTable, page: str) -> list[str]:
    lines = [
        f"- {s.letter}: profile `{escape_markdown(s.profile, '`')}`, protocol "
        f"`{escape_markdown(s.protocol, '`')}`: {escape_markdown(s.describe_cells())}."
        for s in table.settings
    ]
    lines += [f"- {escape_markdown(table.note)}"] if table.note else []
    if table.spec is None:
        lines.append(f"- No spec: {explain_absent_spec(table)}.")
    else:
        commands = ", ".join(f"`{command}`" for command in list_commands(table))
        lines.append(f"- {describe_missing(table)}: {commands}.")
    lines += [f"- [Page of the table]({page}): verdicts, commands, notes."] if page else []
    head = ["", *map(escape_markdown, table.paper.headings.values())]
    rows = [
        [escape_markdown(label), *(_join_cell(cell, page) for cell in cells)]
        for label, cells in table.list_rows()
    ]
    return [
        f"### {table.paper.title}",
        escape_markdown(table.paper.caption),
        "\n".join(lines),
        render_table(head, rows),
    ]


def _make_anchor(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


def _escape_cells(cells: Sequence[str]) -> list[str]:
    return [escape_markdown(cell) for cell in cells]


def _join_cell(cell: IndexedCell, page: str) -> str:
    ours = [
        f"[{escape_markdown(text)}]({page}#{anchor})" if page and anchor else escape_markdown(text)
        for text, anchor in cell.measured
    ]
    return (
        "<br>".join(filter(None, [escape_markdown(cell.printed) or "–" * bool(ours), *ours])) or "–"
    )


def write_index_page(
    path: Path,
    tables: Sequence[IndexedTable],
    results: Path,
    places: Mapping[Place, Path | str],
) -> None:
    """Write the index as a page; `places` has the path of each data set, or why it is absent."""
    papers = group_by_paper(tables)
    overview = PageTable(
        "all tables",
        HEAD,
        [_link_row(_summarize_table(table), table) for of in papers.values() for table in of],
    )
    sections = {
        f"{name}: {of_paper[0].paper.citation}": [
            _describe_entry(table, results, path, places) for table in of_paper
        ]
        for name, of_paper in papers.items()
    }
    about = [describe_totals(tables), ABOUT.replace("`", "")]
    write_page(path, TEMPLATE, title="All tables", about=about, overview=overview, papers=sections)


def _link_row(texts: Sequence[str], table: IndexedTable) -> list[Cell]:
    title, caption, *counts, has_spec = texts
    numbers = [Cell(text, float(text)) for text in counts]
    return [Cell(title, href=f"#{table.paper.id}"), Cell(caption), *numbers, Cell(has_spec)]


def _describe_entry(
    table: IndexedTable, results: Path, page: Path, places: Mapping[Place, Path | str]
) -> dict[str, object]:
    own, beside = results / f"{table.paper.id}.md", page.with_name(f"{table.paper.id}.html")
    found = next((path for path in (beside, own) if path.is_file()), None)
    address = link_file(found, page) if found else ""
    absent = {
        data: reason.replace("`", "")
        for app, data in table.needed_data
        if isinstance(reason := places.get((app, data)), str)
    }
    rows = [
        [Cell(label), *(_make_cell(cell, address) for cell in cells)]
        for label, cells in table.list_rows()
    ]
    return {
        "id": table.paper.id,
        "title": table.paper.title,
        "caption": table.paper.caption,
        "counts": f"{len(table.printed_cells)} printed, {len(table.measured_cells)} measured, "
        f"{len(table.comparable_cells)} comparable",
        "settings": [
            f"{s.letter}: profile {s.profile}, protocol {s.protocol}: {s.describe_cells()}."
            for s in table.settings
        ]
        + ([table.note] if table.note else []),
        "absent_spec": ""
        if table.spec
        else f"No spec: {explain_absent_spec(table)}.".replace("`", ""),
        "missing": f"{describe_missing(table)}." if table.spec else "",
        "absent_data": absent,
        "commands": list_commands(table),
        "own_page": address,
        "notes": table.paper.notes,
        "table": PageTable(table.paper.title, ["", *table.paper.headings.values()], rows),
    }


def _make_cell(cell: IndexedCell, page: str) -> Cell:
    """Return a cell whose values of ours lead to their runs on the page of the table."""
    try:
        value = float(cell.printed)
    except ValueError:
        value = None
    links = [
        (text, f"{page}#{anchor}" if page and anchor else "") for text, anchor in cell.measured
    ]
    return Cell(cell.printed or "–", value, links=links)
